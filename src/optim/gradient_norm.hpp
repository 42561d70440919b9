#pragma once
/// gradient_norm.hpp: how large gradients are, all together.

#include <ATen/core/Tensor.h>

#include <vector>

namespace ddp::optim {

/// The sum of all elements' squares, in double. The order of the additions is that of `gradients`, wherever they lie
/// and whatever the number of threads: ranks with equal gradients get equal bits. Of any floating-point or complex
/// dtype, on any device, for which this waits.
double sum_of_squares(const std::vector<at::Tensor>& gradients);

}  // namespace ddp::optim
