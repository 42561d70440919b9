#include "reduce/distinct_gradients.hpp"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "reduce/same_memory.hpp"

namespace ddp {
namespace {

// An index that stands twice has the sum of its values as gradient.
at::Tensor values_of(const at::Tensor& parameter) {
  auto& gradient = parameter.mutable_grad();
  if (gradient.layout() != at::kSparse) return gradient.detach();
  if (!gradient.is_coalesced()) gradient = gradient.coalesce();
  return gradient._values().detach();
}

}  // namespace

std::vector<at::Tensor> distinct_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  std::unordered_map<const void*, std::vector<std::size_t>> known;  // by address, as indices of `gradients`
  for (const auto& parameter : parameters) {
    if (!parameter.defined() || !parameter.grad().defined()) continue;
    auto values = values_of(parameter);
    if (values.numel() == 0) continue;
    auto& there = known[values.const_data_ptr()];
    if (std::any_of(there.begin(), there.end(), [&](auto i) { return same_memory(gradients[i], values); })) continue;
    there.push_back(gradients.size());
    gradients.push_back(std::move(values));
  }
  return gradients;
}

}  // namespace ddp
