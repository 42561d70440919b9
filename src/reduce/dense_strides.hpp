#pragma once
/// dense_strides.hpp: how a tensor's elements lie in memory of their own.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ddp {

/// The tensor's own strides where its elements fill their memory without gaps or overlaps, else row-major ones.
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor);

}  // namespace ddp
