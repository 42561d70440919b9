#pragma once
/// same_memory.hpp: when two tensors lie alike in memory. Strides of dimensions of size 1 do not count.

#include <ATen/core/Tensor.h>

namespace ddp {

/// True if `a` and `b`, both strided, have the same sizes and strides.
bool same_layout(const at::Tensor& a, const at::Tensor& b);
/// True if `a` and `b` are the same elements in memory.
bool same_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace ddp
