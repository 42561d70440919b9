#pragma once
/// mean_taker.hpp: what is given gradients' means in backward(), each bucket's as soon as they are there.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace ddp {

/// For DistributedDataParallel's hand_means_to(); the optimizers of optim.hpp have one.
/// Threads: called in backward(), one at a time.
class MeanTaker {
 public:
  virtual ~MeanTaker() = default;

  /// Before a reduction begins: whether means are wanted in it; else they wait for the end of backward() as ever.
  /// Errors: what it throws voids the reduction, a GradientError on every rank.
  virtual bool wants_means() = 0;
  /// The gradients of these parameters are the means. Not called in a reduction that is void, or whose losses were
  /// scaled, or that a second exchange has to complete.
  virtual void take(const std::vector<at::Tensor>& parameters) = 0;
};

}  // namespace ddp
