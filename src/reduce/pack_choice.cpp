#include "reduce/pack_choice.hpp"

namespace ddp {
namespace {

std::optional<PackChoice> copy_of(std::size_t bytes) {
  switch (bytes) {
    case 1:
      return PackChoice{PackKernel::copy1, 1, 1};
    case 2:
      return PackChoice{PackKernel::copy2, 2, 1};
    case 4:
      return PackChoice{PackKernel::copy4, 4, 1};
    case 8:
      return PackChoice{PackKernel::copy8, 8, 1};
    case 16:
      return PackChoice{PackKernel::copy8, 8, 2};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<PackChoice> choose_pack_kernel(at::ScalarType dtype, double factor) {
  if (factor == 1) return copy_of(c10::elementSize(dtype));
  switch (dtype) {
    case at::kFloat:
      return PackChoice{PackKernel::times_float, 4, 1};
    case at::kDouble:
      return PackChoice{PackKernel::times_double, 8, 1};
    case at::kHalf:
      return PackChoice{PackKernel::times_half, 2, 1};
    case at::kBFloat16:
      return PackChoice{PackKernel::times_bfloat16, 2, 1};
    case at::kComplexHalf:
      return PackChoice{PackKernel::times_half, 2, 2};
    case at::kComplexFloat:
      return PackChoice{PackKernel::times_float, 4, 2};
    case at::kComplexDouble:
      return PackChoice{PackKernel::times_double, 8, 2};
    default:
      return std::nullopt;
  }
}

std::vector<pack::Segment> pack_segments(at::TensorList slots, at::TensorList gradients, std::size_t units) {
  std::vector<pack::Segment> segments;
  segments.reserve(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i)
    segments.push_back({reinterpret_cast<std::uintptr_t>(gradients[i].const_data_ptr()),
                        static_cast<std::uint64_t>(slots[i].storage_offset()) * units,
                        static_cast<std::uint64_t>(slots[i].numel()) * units});
  return segments;
}

}  // namespace ddp
