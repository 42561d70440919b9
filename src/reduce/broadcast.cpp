#include "reduce/broadcast.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace ddp {
namespace {

constexpr std::int64_t kAlignment = 16;  // the largest element: complex128

std::int64_t aligned_bytes(const at::Tensor& tensor) {
  return (tensor.numel() * tensor.element_size() + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor slot_for(const at::Tensor& tensor, const at::Tensor& memory, std::int64_t offset_bytes) {
  const auto shape = at::empty_like(tensor, at::MemoryFormat::Contiguous);
  return at::empty({0}, tensor.options().requires_grad(false))
      .set_(memory.storage(), offset_bytes / tensor.element_size(), shape.sizes(), shape.strides());
}

}  // namespace

CoalescedBroadcast::CoalescedBroadcast(const std::vector<at::Tensor>& tensors) {
  std::int64_t total = 0;
  for (const auto& tensor : tensors) total += aligned_bytes(tensor);
  if (total == 0) return;
  bytes_ = at::empty({total}, tensors.front().options().dtype(at::kByte).requires_grad(false));
  std::int64_t offset = 0;
  for (const auto& tensor : tensors) {
    tensors_.push_back(tensor.detach());
    slots_.push_back(slot_for(tensor, bytes_, offset));
    offset += aligned_bytes(tensor);
  }
}

void CoalescedBroadcast::run(ProcessGroup& group) {
  if (tensors_.empty()) return;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_new_version;
  if (group.rank() == 0)
    for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].copy_(tensors_[i]);
  group.broadcast(bytes_, 0, {.label = "parameters and buffers"});
  if (group.rank() != 0)
    for (std::size_t i = 0; i < slots_.size(); ++i) tensors_[i].copy_(slots_[i]);
}

void broadcast_in_chunks(const std::vector<at::Tensor>& tensors, ProcessGroup& group, std::int64_t chunk_bytes) {
  std::vector<at::Tensor> chunk;
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    if (bytes > 0 && bytes + aligned_bytes(tensor) > chunk_bytes) {
      CoalescedBroadcast(chunk).run(group);
      chunk.clear();
      bytes = 0;
    }
    chunk.push_back(tensor);
    bytes += aligned_bytes(tensor);
  }
  CoalescedBroadcast(chunk).run(group);
}

}  // namespace ddp
