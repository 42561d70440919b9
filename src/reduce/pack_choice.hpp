#pragma once
/// pack_choice.hpp: which kernel packs a dtype, and tensors as the segments that it takes.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "reduce/pack_layout.hpp"

namespace ddp {

enum class PackKernel { copy1, copy2, copy4, copy8, times_float, times_double, times_half, times_bfloat16 };
inline constexpr std::size_t kPackKernels = 8;

struct PackChoice {
  PackKernel kernel;
  std::size_t unit_bytes;  ///< what the kernel calls an element
  std::size_t units;       ///< of them in an element of the tensor: 2 for a complex one, whose parts are two numbers
};

/// None where no kernel multiplies that dtype; by 1 any is copied.
std::optional<PackChoice> choose_pack_kernel(at::ScalarType dtype, double factor);

/// A gradient's way into its slot, for tensors that lie alike. Lengths are in units of the kernel.
std::vector<pack::Segment> pack_segments(at::TensorList slots, at::TensorList gradients, std::size_t units);

}  // namespace ddp
