#pragma once
/// distinct_gradients.hpp: the gradients of some parameters, each memory once.

#include <ATen/core/Tensor.h>

#include <vector>

namespace ddp {

/// Those that are there, as tensors to be read and changed in place: a sparse one is its values, in which each index
/// stands once. Tied parameters, and gradients that are the same memory, stand once; in the order of the parameters, so
/// that ranks which add something up over them get the same bits.
std::vector<at::Tensor> distinct_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace ddp
