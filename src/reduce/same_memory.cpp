#include "reduce/same_memory.hpp"

namespace ddp {

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (std::int64_t i = 0; i < a.dim(); ++i)
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.layout() != at::kStrided || b.layout() != at::kStrided) return false;
  return a.dtype() == b.dtype() && a.data_ptr() == b.data_ptr() && same_layout(a, b);
}

}  // namespace ddp
