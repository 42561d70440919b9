#pragma once
/// metrics.hpp: numbers and predictions of all ranks. The arguments are never changed.

#include <ATen/core/Tensor.h>

#include "ddp/mean.hpp"

namespace ddp {

class DistributedSampler;
class ProcessGroup;

/// Collective. Puts the ranks' predictions together in the order of the dataset, on every rank: each sample once,
/// whatever the sampler's padding.
///
/// Tensors: `local` is [sampler.size(), ...], this rank's predictions for sampler.indices() in their order, of any
/// dtype; the result is [dataset size, ...] on group.device(). A rank without samples may give an undefined tensor,
/// or an empty one of any shape.
/// Errors, on every rank: std::logic_error if a rank's first dimension is not its number of samples, if the ranks
/// differ in dtype or in the other dimensions, if `sampler` is not one for this group's ranks, or if it leaves
/// samples out (drop_last).
at::Tensor gather_predictions(const at::Tensor& local, const DistributedSampler& sampler, ProcessGroup& group);

}  // namespace ddp
