#include "reduce/broadcast.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <stdexcept>

#include "comm/planned_calls.hpp"

namespace ddp {
namespace {

constexpr std::int64_t kAlignment = 16;  // the largest element: complex128

std::int64_t aligned_bytes(const at::Tensor& tensor) {
  return (tensor.numel() * tensor.element_size() + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor memory_for(const std::vector<at::Tensor>& tensors, std::int64_t bytes) {
  if (tensors.empty()) return {};
  return at::empty({bytes}, tensors.front().options().dtype(at::kByte).requires_grad(false));
}

at::Tensor slot_for(const at::Tensor& tensor, const at::Tensor& memory, std::int64_t offset_bytes) {
  const auto shape = at::empty_like(tensor, at::MemoryFormat::Contiguous);
  return at::empty({0}, tensor.options().requires_grad(false))
      .set_(memory.storage(), offset_bytes / tensor.element_size(), shape.sizes(), shape.strides());
}

}  // namespace

std::int64_t CoalescedBroadcast::bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t total = 0;
  for (const auto& tensor : tensors) total += aligned_bytes(tensor);
  return total;
}

CoalescedBroadcast::CoalescedBroadcast(const std::vector<at::Tensor>& tensors)
    : CoalescedBroadcast(tensors, memory_for(tensors, bytes_of(tensors))) {}

CoalescedBroadcast::CoalescedBroadcast(const std::vector<at::Tensor>& tensors, const at::Tensor& memory) {
  const auto total = bytes_of(tensors);
  if (total == 0) return;
  bytes_ = memory.narrow(0, 0, total);
  std::int64_t offset = 0;
  for (const auto& tensor : tensors) {
    tensors_.push_back(tensor);
    slots_.push_back(slot_for(tensor, bytes_, offset));
    offset += aligned_bytes(tensor);
  }
}

void CoalescedBroadcast::run(ProcessGroup& group, int root) {
  if (tensors_.empty()) return;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (tensors_[i].dtype() != slots_[i].dtype() || tensors_[i].sizes() != slots_[i].sizes())
      throw std::logic_error("ddp: a buffer was converted or resized after wrapping; wrap the module after that");
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_new_version;
  if (group.rank() == root)
    for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].copy_(tensors_[i]);
  comm::PlannedCalls::broadcast(group, bytes_, root, {.label = "parameters and buffers"}).wait();
  if (group.rank() != root)
    for (std::size_t i = 0; i < slots_.size(); ++i) tensors_[i].copy_(slots_[i]);
}

void broadcast_in_chunks(const std::vector<at::Tensor>& tensors, ProcessGroup& group, int root,
                         std::int64_t chunk_bytes) {
  std::vector<std::vector<at::Tensor>> chunks;
  std::int64_t filled = 0, largest = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = aligned_bytes(tensor);
    if (chunks.empty() || filled + bytes > chunk_bytes) {
      chunks.emplace_back();
      filled = 0;
    }
    chunks.back().push_back(tensor);
    filled += bytes;
    largest = std::max(largest, filled);
  }
  if (chunks.empty()) return;
  const auto memory = memory_for(tensors, largest);  // one for all: freed memory may come back late
  for (const auto& chunk : chunks) CoalescedBroadcast(chunk, memory).run(group, root);
}

}  // namespace ddp
