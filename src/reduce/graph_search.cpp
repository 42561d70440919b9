#include "reduce/graph_search.hpp"

namespace ddp {

void GraphSearch::visit(const WeakNode& root) {
  const auto start = root.lock();
  if (!start || !seen_.insert(start.get()).second) return;
  std::vector<const Node*> open{start.get()};
  while (!open.empty()) {
    const auto* const node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges())
      if (edge.function && seen_.insert(edge.function.get()).second) open.push_back(edge.function.get());
  }
}

}  // namespace ddp
