#include "reduce/late_gradients.hpp"

#include <ATen/ops/zeros_like.h>

#include <set>
#include <string>

#include "comm/planned_calls.hpp"
#include "comm/wire.hpp"

namespace ddp {

void LateGradients::add(std::size_t i, const at::Tensor& gradient, const Scale& scale) {
  const auto dense = gradient.layout() == at::kStrided ? gradient.detach() : gradient.detach().to_dense();
  const auto [entry, is_new] = gradients_.try_emplace(i);
  if (is_new)
    entry->second = dense.mul(scale.tensor);
  else
    entry->second.add_(dense, scale.value);
}

std::vector<std::size_t> LateGradients::exchange(ProcessGroup& group, const std::vector<Parameter>& parameters,
                                                 BucketSet& buckets, ReduceOp op) {
  std::string own(parameters.size(), 0);
  for (const auto& [i, gradient] : gradients_) own[i] = 1;
  std::set<std::size_t> anywhere;
  for (const auto& each : group.all_gather_bytes(own, {.label = "late gradients of this backward"}))
    for (std::size_t i = 0; i < each.size(); ++i)
      if (each[i] != 0) anywhere.insert(i);
  std::vector<at::Tensor> sums;
  for (const auto i : anywhere) {
    const auto mine = gradients_.find(i);
    sums.push_back(mine == gradients_.end() ? at::zeros_like(buckets.view(i), at::MemoryFormat::Contiguous)
                                            : mine->second.contiguous());
  }
  for (const auto& work : comm::PlannedCalls::all_reduce_each(group, sums, {.label = "late gradients"}, op))
    work.wait();
  std::size_t next = 0;
  for (const auto i : anywhere) {
    buckets.view(i).add_(sums[next]);
    comm::keep_for_current_stream(sums[next++]);
  }
  clear();
  return {anywhere.begin(), anywhere.end()};
}

}  // namespace ddp
