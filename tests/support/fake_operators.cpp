#include "support/fake_operators.hpp"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "support/fake_accelerator.hpp"

namespace ddp::testing {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

FakeAccelerator& fake() { return fake_accelerator(); }

FakeStreamKey current_stream(c10::Device device) { return {device.index(), FakeAccelerator::current(device)}; }

/// Memory of the device that is current.
struct FakeAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto device = c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->getDevice();
    void* const memory = fake().memory.allocate(current_stream(device), bytes);
    return {memory, memory, &free, device};
  }
  static void free(void* memory) { fake().memory.free(memory); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->recordDataPtrOnStream(memory, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0] = stats.reserved_bytes[0] = fake().memory.bytes(device);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { fake().memory.reset_peak(device); }
};

c10::Device chosen(std::optional<at::Device> device) {
  if (device && device->has_index()) return *device;
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->getDevice();
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_generic(size, &fake_device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_strided_generic(size, stride, &fake_device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

/// While an operator of the CPU stands in for the device's: its results reach the device as late as a kernel's.
struct InOperator {
  InOperator() { ++depth; }
  ~InOperator() { --depth; }
  InOperator(const InOperator&) = delete;
  InOperator& operator=(const InOperator&) = delete;
  static thread_local int depth;
};
thread_local int InOperator::depth = 0;

FakeStreams::Task copy_task(const at::Tensor& from, const at::Tensor& to) {
  return [from = host_view(from), to = host_view(to)] {
    const c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    to.copy_(from);
    return true;
  };
}

void note_copy(const at::Tensor& from, const at::Tensor& to, FakeStreamKey stream) {
  if (InOperator::depth > 0) return;
  const auto on = " on " + std::to_string(stream.id);
  const auto is_pinned = [](const at::Tensor& tensor) {
    return fake_pinned_memory().contains(tensor.const_data_ptr());
  };
  if (from.is_cpu()) {
    fake().note("copy" + on + (is_pinned(from) ? " from pinned" : ""));
  } else if (to.is_cpu()) {
    fake().note("copy back" + on + (is_pinned(to) ? " to pinned" : ""));
  } else {
    fake().note("copy within" + on);
  }
}

// On the source's stream, between what the target's has been given and what it will be given.
void copy_across(const at::Tensor& from, const at::Tensor& to) {
  const auto source = current_stream(from.device()), target = current_stream(to.device());
  auto& streams = fake().streams;
  streams.add_wait(source, target, streams.end(target));
  const auto end = streams.add(source, copy_task(from, to));
  streams.add_wait(target, source, end);
}

void copy_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  auto& streams = fake().streams;
  const auto stream = current_stream(from.is_cpu() ? to.device() : from.device());
  const auto& host = from.is_cpu() ? from : to;
  const bool is_pinned = fake_pinned_memory().contains(host.const_data_ptr());
  const bool is_staged = from.is_cpu() && non_blocking && !is_pinned;
  const bool is_result = from.is_cpu() && InOperator::depth > 0;
  const auto end = streams.add(stream, copy_task(is_staged ? from.clone() : from, to));
  if (is_staged || is_result || (non_blocking && is_pinned)) return;
  TORCH_CHECK(InOperator::depth > 0 || !fake().is_capturing,
              "a copy that the host waits for is not permitted while a stream is captured");
  streams.finish(stream, end);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  note_copy(from, to, current_stream(from.is_cpu() ? to.device() : from.device()));
  if (from.is_cpu() || to.is_cpu()) {
    copy_host(from, to, non_blocking);
  } else {
    copy_across(from, to);
  }
  return to;
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  const auto stream = current_stream(self.device());
  fake().streams.finish(stream, fake().streams.end(stream));  // old values are copied by the host
  return at::native::resize_(self, size, format);
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  c10::impl::getDeviceGuardImpl(stream.device_type())->recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

at::Tensor cpu_of(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? tensor->cpu() : at::Tensor();
}

at::Tensor moved(const at::Tensor& result, const at::Tensor& like) {
  return result.defined() ? result.to(like.device()) : result;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const InOperator guard;
  return moved(at::convolution(input.cpu(), weight.cpu(), cpu_of(bias), stride, padding, dilation, transposed,
                               output_padding, groups),
               input);
}

Triple convolution_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  const InOperator guard;
  const std::array<int64_t, 1> bias_sizes{grad.size(1)};
  const auto [first, second, third] =
      at::convolution_backward(grad.cpu(), input.cpu(), weight.cpu(), at::IntArrayRef(bias_sizes), stride, padding,
                               dilation, transposed, output_padding, groups, wanted);
  return {moved(first, input), moved(second, input), moved(third, input)};
}

// The schema does not say that it changes the running statistics, which the fallback goes by.
Triple batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                  const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mean,
                  const std::optional<at::Tensor>& variance, bool training, double momentum, double eps) {
  if (!mean || !variance || !mean->defined())
    return at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
  auto running_mean = *mean, running_variance = *variance;
  return at::_native_batch_norm_legit(input, weight, bias, running_mean, running_variance, training, momentum, eps);
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const InOperator guard;
  at::native::cpu_fallback(op, stack);
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

c10::Allocator& fake_device_allocator() {
  static auto* const allocator = new FakeAllocator;
  return *allocator;
}

void register_fake_operators(torch::Library& library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("record_stream", &record_stream);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
  library.impl("native_batch_norm", &batch_norm);
}

void register_fake_fallback(torch::Library& library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace ddp::testing
