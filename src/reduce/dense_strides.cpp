#include "reduce/dense_strides.hpp"

#include <algorithm>
#include <cstddef>

namespace ddp {

std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  const auto sizes = tensor.sizes();
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (auto i = static_cast<std::ptrdiff_t>(sizes.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<std::int64_t>(sizes[i + 1], 1);
  return strides;
}

}  // namespace ddp
