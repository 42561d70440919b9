#include "ddp/prefetch.hpp"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

namespace ddp {
namespace {

/// A stream of an accelerator on which copies run, and how others wait for them.
struct CopyStream {
  explicit CopyStream(at::Device device)
      : guard(device.type()), stream(guard.getStreamFromGlobalPool(device)), done(device.type()) {}

  c10::impl::VirtualGuardImpl guard;
  c10::Stream stream;
  c10::Event done;
  std::vector<at::Tensor> under_way;
};

}  // namespace

struct DeviceCopier::Impl {
  explicit Impl(at::Device on) : device(on) {
    if (!at::isAccelerator(device.type())) return;
    if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
    stream.emplace(device);
  }

  at::Device device;
  std::optional<CopyStream> stream;  ///< a device that computes nothing has none
};

DeviceCopier::DeviceCopier(at::Device device) : impl_(std::make_unique<Impl>(device)) {}
DeviceCopier::DeviceCopier(DeviceCopier&&) noexcept = default;
DeviceCopier& DeviceCopier::operator=(DeviceCopier&&) noexcept = default;
DeviceCopier::~DeviceCopier() = default;

void DeviceCopier::begin_batch() {
  if (auto& stream = impl_->stream) stream->under_way.clear();
}

at::Tensor DeviceCopier::start_one(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  auto& stream = impl_->stream;
  // What is on the device already belongs to the current stream, and a sparse tensor has no memory of its own to pin.
  if (!stream || !tensor.device().is_cpu() || tensor.layout() != at::kStrided) return tensor.to(impl_->device);
  const c10::StreamGuard guard(stream->stream);
  const auto pinned = tensor.is_pinned() ? tensor : tensor.pin_memory();
  return stream->under_way.emplace_back(pinned.to(impl_->device, /*non_blocking=*/true));
}

void DeviceCopier::end_batch() {
  if (auto& stream = impl_->stream) stream->done.record(stream->stream);
}

void DeviceCopier::finish() {
  auto& stream = impl_->stream;
  if (!stream) return;
  const auto current = stream->guard.getStream(impl_->device);
  stream->done.block(current);
  // The allocator knows these tensors from the copying stream alone.
  for (const auto& tensor : stream->under_way) tensor.record_stream(current);
  stream->under_way.clear();
}

}  // namespace ddp
