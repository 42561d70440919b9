#pragma once
/// mean.hpp: one number of all ranks, to show.

#include <ATen/core/Tensor.h>

namespace ddp {

class ProcessGroup;

/// Collective. The mean over the ranks of each rank's value, in float64, the same bits on every rank.
///
/// Tensors: a tensor's value is the mean of its elements: any real dtype, shape and device, with or without a
/// gradient. With other numbers of elements on the ranks this is a mean of means; for those gather sums and counts.
/// Errors: std::invalid_argument for an undefined, empty or complex tensor.
double mean(double value, ProcessGroup& group);
double mean(const at::Tensor& values, ProcessGroup& group);

}  // namespace ddp
