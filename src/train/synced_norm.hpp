#pragma once
/// synced_norm.hpp: the function behind SyncBatchNorm, with its gradients.

#include <ATen/core/Tensor.h>

#include <memory>

#include "ddp/process_group.hpp"

namespace ddp {

/// What a batch norm holds; each may be undefined.
struct NormTensors {
  at::Tensor weight, bias;               ///< [channels]
  at::Tensor running_mean, running_var;  ///< [channels]; both or none
};

struct NormNumbers {
  double momentum = 0;  ///< the share of this batch in the running statistics
  double eps = 0;
};

/// Collective, and so is its backward where the input requires a gradient. In training; updates the running statistics.
/// Errors: std::logic_error, on all ranks, where these have one value a channel together.
at::Tensor synced_batch_norm(const at::Tensor& input, const NormTensors& tensors, const NormNumbers& numbers,
                             const std::shared_ptr<ProcessGroup>& group);

}  // namespace ddp
