#include "reduce/gradient_pack.hpp"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/mul.h>

#include <algorithm>

#include "reduce/same_memory.hpp"
#ifdef DDP_WITH_CUDA_KERNELS
#include "reduce/pack_cuda.hpp"
#endif

namespace ddp {
namespace {

// The same elements in the same order, with nothing left to be done to them when they are read.
bool lies_as(const at::Tensor& slot, const at::Tensor& gradient) {
  return gradient.scalar_type() == slot.scalar_type() && gradient.device() == slot.device() &&
         same_layout(slot, gradient) && slot.is_non_overlapping_and_dense() && !gradient.is_conj() &&
         !gradient.is_neg() && !gradient._is_zerotensor();
}

}  // namespace

PackFunction pack_function([[maybe_unused]] at::Device device) {
#ifdef DDP_WITH_CUDA_KERNELS
  if (device.is_cuda()) return load_cuda_pack(device) ? &cuda_pack : nullptr;
#endif
  return nullptr;
}

GradientPack::GradientPack(at::Device device, PackFunction function) : function_(function), producers_(device) {}

void GradientPack::put(const at::Tensor& slot, const at::Tensor& gradient, const Scale& scale) {
  producers_.note();
  pieces_.push_back({slot, gradient, scale, producers_.current()});
}

// Does at once what fits into no batch.
std::vector<GradientPack::Batch> GradientPack::sort_out() const {
  std::vector<Batch> batches;
  for (const auto& [slot, gradient, scale, producer] : pieces_) {
    if (slot.numel() == 0) continue;
    if (!lies_as(slot, gradient)) {
      auto out = slot;
      at::mul_out(out, gradient, scale.tensor);
    } else if (same_memory(slot, gradient)) {
      if (scale.value != 1) slot.mul_(scale.tensor);
    } else {
      auto batch = std::find_if(batches.begin(), batches.end(),
                                [&](const Batch& other) { return other.scale.value == scale.value; });
      if (batch == batches.end()) batch = batches.insert(batch, {scale, {}, {}});
      batch->slots.push_back(slot);
      batch->gradients.push_back(gradient);
    }
  }
  return batches;
}

// A factor of 1 is the rule on devices whose engine averages, so the other case may take an operator for each.
void GradientPack::run(const Batch& batch) const {
  if (function_ != nullptr && function_(batch.slots, batch.gradients, batch.scale.value)) return;
  if (batch.scale.value == 1) return at::_foreach_copy_(batch.slots, batch.gradients);
  for (std::size_t i = 0; i < batch.slots.size(); ++i) {
    auto out = batch.slots[i];
    at::mul_out(out, batch.gradients[i], batch.scale.tensor);
  }
}

void GradientPack::pack() {
  if (pieces_.empty()) return;
  producers_.join();
  for (const auto& batch : sort_out()) run(batch);
  const auto current = producers_.current();
  for (const auto& piece : pieces_)
    if (piece.producer != current) piece.gradient.record_stream(current);
  pieces_.clear();
}

}  // namespace ddp
