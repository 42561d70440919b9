#include "reduce/bucket.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>

#include "reduce/dense_strides.hpp"

namespace ddp {
namespace {

// A tensor over part of `memory` that autograd does not know as a view.
at::Tensor alias(const at::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides,
                 const at::TensorOptions& options) {
  return at::empty({0}, options).set_(memory.storage(), offset, sizes, strides);
}

// Up to here the call of an operator costs more than its work: 1 to 2 us, in which a core multiplies some thousand
// numbers. Above, the operator's wider instructions and its threads win.
constexpr std::int64_t kFewElements = 4096;

template <class T>
void multiply_few(const at::Tensor& out, const at::Tensor& in, double factor) {
  auto* to = out.mutable_data_ptr<T>();
  const auto* from = in.const_data_ptr<T>();
  const auto scale = static_cast<T>(factor);
  for (std::int64_t i = 0, n = out.numel(); i < n; ++i) to[i] = from[i] * scale;
}

// The same bits as the operator's.
bool multiply_if_few(const at::Tensor& out, const at::Tensor& in, double factor) {
  if (out.numel() > kFewElements || !out.is_cpu() || out.scalar_type() != in.scalar_type() ||
      !out.is_non_overlapping_and_dense() || !same_layout(out, in))
    return false;
  if (out.scalar_type() == at::kFloat)
    multiply_few<float>(out, in, factor);
  else if (out.scalar_type() == at::kDouble)
    multiply_few<double>(out, in, factor);
  else
    return false;
  return true;
}

}  // namespace

Bucket::Deferred::Deferred(at::Device device)
    : pack(device, pack_function(device)), writers(device), home(writers.current()) {
  writers.note();  // its memory was zeroed there
}

Bucket::Bucket(const std::vector<at::Tensor>& parameters, const Allocate& allocate, std::int64_t extra) {
  std::int64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.numel();
  const auto options = parameters.front().options().requires_grad(false);
  const auto element_bytes = static_cast<std::int64_t>(options.dtype().itemsize());
  const auto memory = allocate((elements + extra) * element_bytes);
  flat_ = alias(memory, 0, {elements + extra}, {1}, options);
  gradients_ = alias(memory, 0, {elements}, {1}, options);
  extra_ = alias(memory, elements, {extra}, {1}, options);
  std::int64_t offset = 0;
  for (const auto& parameter : parameters) {
    slots_.push_back(alias(memory, offset, parameter.sizes(), dense_strides(parameter), options));
    offset += parameter.numel();
  }
  views_.resize(slots_.size());
  if (flat_.is_cpu()) return;
  deferred_.emplace(flat_.device());
  deferred_->waits.resize(slots_.size());
}

void Bucket::put(std::size_t slot, const at::Tensor& gradient, const Scale& scale) {
  auto& place = slots_[slot];
  if (gradient.layout() != at::kStrided) {
    clear(slot);
    add(slot, gradient, scale);
  } else if (deferred_) {
    defer(slot, gradient, scale);
  } else if (!multiply_if_few(place, gradient, scale.value)) {
    at::mul_out(place, gradient, scale.tensor);
  }
}

void Bucket::add(std::size_t slot, const at::Tensor& gradient, const Scale& scale) {
  pack_if_waiting(slot);
  come_behind_writers();
  slots_[slot].add_(gradient, scale.value);
}

void Bucket::clear(std::size_t slot) {
  pack_if_waiting(slot);
  come_behind_writers();
  slots_[slot].zero_();
}

void Bucket::settle() {
  if (!deferred_) return;
  pack_all();
  come_behind_writers();
  deferred_->writers.join();
}

void Bucket::defer(std::size_t slot, const at::Tensor& gradient, const Scale& scale) {
  pack_if_waiting(slot);
  deferred_->pack.put(slots_[slot], gradient, scale);
  deferred_->waits[slot] = true;
}

// All of them, for one kernel costs as much as the other.
void Bucket::pack_if_waiting(std::size_t slot) {
  if (deferred_ && deferred_->waits[slot]) pack_all();
}

void Bucket::pack_all() {
  if (deferred_->pack.is_empty()) return;
  come_behind_writers();
  deferred_->pack.pack();
  deferred_->waits.assign(slots_.size(), false);
}

// The current stream is about to write, or to read what was written.
void Bucket::come_behind_writers() {
  if (!deferred_) return;
  deferred_->writers.join();
  deferred_->writers.note();
  if (const auto current = deferred_->writers.current(); current != deferred_->home) flat_.record_stream(current);
}

const at::Tensor& Bucket::view(std::size_t slot) {
  pack_if_waiting(slot);
  const auto& place = slots_[slot];
  auto& handed_out = views_[slot];
  if (!same_memory(handed_out, place) || handed_out.requires_grad())
    handed_out = alias(place, place.storage_offset(), place.sizes(), place.strides(), place.options());
  return handed_out;
}

bool Bucket::owns(const at::Tensor& tensor) const {
  return tensor.has_storage() && tensor.storage().is_alias_of(flat_.storage());
}

}  // namespace ddp
