#include "fake_accelerator.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

namespace ddp::testing {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::StreamId kPooled = 1;
constexpr unsigned char kNotCopiedYet = 0x5a;

FakeAccelerator state;
std::set<const void*> pinned_memory;
std::vector<std::function<void()>> waiting_copies;

void note(const std::string& text) { state.notes.push_back(text); }

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kFakeDevice; }
  c10::Device getDevice() const override { return kFakeDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kFakeDevice, id); }
  c10::Stream getStream(c10::Device) const override { return stream(state.current); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(kPooled); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(state.current, next.id()));
  }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    note("record " + std::to_string(on.id()));
    *event = &state;
  }
  void block(void*, const c10::Stream& waiting) const override {
    note(std::to_string(waiting.id()) + " waits");
    for (const auto& copy : std::exchange(waiting_copies, {})) copy();
  }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};

/// On the device, or pinned memory of the host.
struct FakeAllocator final : c10::Allocator {
  explicit FakeAllocator(c10::Device on) : device(on) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = std::malloc(bytes);
    std::memset(memory, kNotCopiedYet, bytes);
    if (!device.is_cpu()) return {memory, memory, &std::free, device};
    ++state.pinnings;
    pinned_memory.insert(memory);
    return {memory, memory, &unpin, device};
  }
  static void unpin(void* memory) {
    pinned_memory.erase(memory);
    std::free(memory);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  c10::Device device;
};

FakeAllocator& device_allocator() {
  static FakeAllocator allocator(kFakeDevice);
  return allocator;
}

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* memory) const override { return pinned_memory.count(memory) != 0; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static FakeAllocator allocator(at::kCPU);
    return &allocator;
  }
};

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool is_pinned = pinned_memory.count(from.const_data_ptr()) != 0;
  note("copy on " + std::to_string(state.current) + (is_pinned ? " from pinned" : ""));
  auto copy = [from, to] { std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes()); };
  if (non_blocking && is_pinned) {
    waiting_copies.emplace_back(copy);
  } else {
    copy();
  }
  return to;
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  if (tensor.device() == kFakeDevice) note("keep for " + std::to_string(stream.id()));
}

/// Lives until the process ends.
struct Registration {
  Registration() : library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__) {
    static FakeGuard guard;
    static FakeHooks hooks;
    const c10::impl::DeviceGuardImplRegistrar registrar(kType, &guard);
    c10::register_privateuse1_backend("fake");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    library.impl("empty.memory_format", &empty);
    library.impl("empty_strided", &empty_strided);
    library.impl("_copy_from", &copy_from);
    library.impl("record_stream", &record_stream);
  }
  torch::Library library;
};

}  // namespace

FakeAccelerator& fake_accelerator() {
  static Registration registration;
  return state;
}

}  // namespace ddp::testing
