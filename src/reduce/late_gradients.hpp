#pragma once
/// late_gradients.hpp: gradients that came after their bucket had left.
///
/// Rare: a parameter that looked unused and was used after all, or one that a recomputed block met a second time.
/// They are kept aside and averaged in a second exchange, once every rank knows that one of them has some.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <vector>

#include "ddp/process_group.hpp"
#include "reduce/bucket_set.hpp"
#include "reduce/parameter.hpp"

namespace ddp {

/// Threads: one at a time; the reducer's lock covers it.
class LateGradients {
 public:
  void clear() { gradients_.clear(); }
  bool is_empty() const { return gradients_.empty(); }
  void add(std::size_t i, const at::Tensor& gradient, const Scale& scale);

  /// Collective. Adds all ranks' late gradients, reduced by `op`, to the means in the slots, and forgets them.
  /// Returns the parameters whose means were completed, the same on all ranks.
  std::vector<std::size_t> exchange(ProcessGroup& group, const std::vector<Parameter>& parameters, BucketSet& buckets,
                                    ReduceOp op);

 private:
  std::map<std::size_t, at::Tensor> gradients_;  // scaled, by parameter
};

}  // namespace ddp
