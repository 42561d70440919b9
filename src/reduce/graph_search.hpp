#pragma once
/// graph_search.hpp: which nodes of the autograd graph lie behind some outputs.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ddp {

namespace detail {
// LibTorch's versions differ in how nodes are held.
template <class T>
std::weak_ptr<T> weak(const std::shared_ptr<T>& node) {
  return node;
}
template <class T>
c10::weak_intrusive_ptr<T> weak(const c10::intrusive_ptr<T>& node) {
  return c10::weak_intrusive_ptr<T>(node);
}
}  // namespace detail

/// Holds no part of the graph alive. Threads: one at a time.
class GraphSearch {
 public:
  using Node = torch::autograd::Node;
  using WeakNode = decltype(detail::weak(std::declval<const at::Tensor&>().grad_fn()));

  /// Adds what lies behind `root`, and `root`; nothing where it does not live any more.
  void visit(const WeakNode& root);

  bool is_empty() const { return seen_.empty(); }
  bool found(const Node& node) const { return seen_.count(&node) > 0; }

 private:
  std::unordered_set<const Node*> seen_;
};

}  // namespace ddp
