#include "reduce/bucket.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>

#include <algorithm>

namespace ddp {
namespace {

// A tensor over part of `memory` that autograd does not know as a view.
at::Tensor alias(const at::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides,
                 const at::TensorOptions& options) {
  return at::empty({0}, options).set_(memory.storage(), offset, sizes, strides);
}

std::vector<std::int64_t> row_major_strides(at::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (auto i = static_cast<std::ptrdiff_t>(sizes.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<std::int64_t>(sizes[i + 1], 1);
  return strides;
}

}  // namespace

Bucket::Bucket(const std::vector<at::Tensor>& parameters, const Allocate& allocate, std::int64_t extra)
    : filled_(parameters.size(), false) {
  std::int64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.numel();
  const auto options = parameters.front().options().requires_grad(false);
  const auto element_bytes = static_cast<std::int64_t>(options.dtype().itemsize());
  const auto memory = allocate((elements + extra) * element_bytes);
  flat_ = alias(memory, 0, {elements + extra}, {1}, options);
  extra_ = alias(memory, elements, {extra}, {1}, options);
  std::int64_t offset = 0;
  for (const auto& parameter : parameters) {
    const auto strides =
        parameter.is_non_overlapping_and_dense() ? parameter.strides().vec() : row_major_strides(parameter.sizes());
    slots_.push_back(alias(memory, offset, parameter.sizes(), strides, options));
    offset += parameter.numel();
  }
  views_.resize(slots_.size());
  reset();
}

bool Bucket::put(std::size_t slot, const at::Tensor& gradient, const at::Tensor& scale) {
  at::mul_out(slots_[slot], gradient, scale);
  if (filled_[slot]) return false;
  filled_[slot] = true;
  return --missing_ == 0;
}

void Bucket::reset() {
  missing_ = 0;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    filled_[slot] = slots_[slot].numel() == 0;
    if (!filled_[slot]) ++missing_;
  }
}

const at::Tensor& Bucket::view(std::size_t slot) {
  const auto& place = slots_[slot];
  auto& handed_out = views_[slot];
  if (!same_memory(handed_out, place) || handed_out.requires_grad())
    handed_out = alias(place, place.storage_offset(), place.sizes(), place.strides(), place.options());
  return handed_out;
}

bool Bucket::owns(const at::Tensor& tensor) const {
  return tensor.has_storage() && tensor.storage().is_alias_of(flat_.storage());
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.is_sparse() || b.is_sparse()) return false;
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes() || a.data_ptr() != b.data_ptr()) return false;
  for (std::int64_t i = 0; i < a.dim(); ++i)
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

}  // namespace ddp
