#include "support/fake_accelerator.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "support/fake_operators.hpp"

namespace ddp::testing {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::StreamId kPooled = 4;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kFakeDevices> current_streams{};

FakeAccelerator& state() {
  static auto* const accelerator = new FakeAccelerator;  // tensors may outlive what is static
  return *accelerator;
}

c10::DeviceIndex checked(c10::DeviceIndex index) {
  TORCH_CHECK(index >= -1 && index < kFakeDevices, "there is no fake device ", static_cast<int>(index));
  return index < 0 ? current_device : index;
}

c10::Device device_of(c10::DeviceIndex index) { return {kType, index}; }

c10::StreamId& stream_of(c10::DeviceIndex index) { return current_streams.at(static_cast<unsigned char>(index)); }

void refuse_while_capturing(const char* what) {
  TORCH_CHECK(!state().is_capturing, what, " is not permitted while a stream is captured");
}

using Time = std::chrono::steady_clock::time_point;

struct FakeEvent {
  FakeStreamKey stream;
  FakeStreams::Position position;
  int asked = 0;
  std::shared_ptr<std::atomic<Time>> reached = std::make_shared<std::atomic<Time>>();  // where it is timed
};

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device next) const override {
    return device_of(std::exchange(current_device, checked(next.index())));
  }
  c10::Device getDevice() const override { return device_of(current_device); }
  void setDevice(c10::Device next) const override { current_device = checked(next.index()); }
  void uncheckedSetDevice(c10::Device next) const noexcept override {
    if (next.has_index()) current_device = next.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = checked(device.index());
    return FakeAccelerator::stream(stream_of(index), device_of(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return FakeAccelerator::stream(0, device_of(checked(device.index())));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override {
    return state().pooled_stream(device_of(checked(device.index())), is_high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return state().new_stream(device_of(checked(device.index())), priority);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto index = checked(next.device_index());
    return FakeAccelerator::stream(std::exchange(stream_of(index), next.id()), device_of(index));
  }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag flag) const override {
    state().note("record " + std::to_string(on.id()));
    if (*event == nullptr) *event = new FakeEvent;
    const auto key = FakeAccelerator::key(on);
    FakeEvent made{key, 0};
    if (flag == c10::EventFlag::BACKEND_DEFAULT)
      state().streams.add(key, [reached = made.reached] {
        *reached = std::chrono::steady_clock::now();
        return true;
      });
    made.position = state().streams.end(key);
    *static_cast<FakeEvent*>(*event) = std::move(made);
  }
  void block(void* event, const c10::Stream& waiting) const override {
    state().note(std::to_string(waiting.id()) + " waits");
    const auto& [stream, position, asked, reached] = *static_cast<FakeEvent*>(event);
    state().streams.add_wait(FakeAccelerator::key(waiting), stream, position);
  }
  bool queryEvent(void* event) const override {
    refuse_while_capturing("to query an event");
    auto& [stream, position, asked, reached] = *static_cast<FakeEvent*>(event);
    constexpr int kPatience = 3;  // who asks again and again finds a device that has gone on by itself
    if (++asked > kPatience) state().streams.advance(stream, position);
    return state().streams.is_done(stream, position);
  }
  void synchronizeEvent(void* event) const override {
    refuse_while_capturing("to wait for an event");
    const auto& [stream, position, asked, reached] = *static_cast<FakeEvent*>(event);
    state().note("host waits for " + std::to_string(stream.id));
    state().streams.finish(stream, position);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    const auto reached = [](void* event) { return static_cast<FakeEvent*>(event)->reached->load(); };
    return std::chrono::duration<double, std::milli>(reached(second) - reached(first)).count();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<FakeEvent*>(event); }

  bool queryStream(const c10::Stream& stream) const override {
    refuse_while_capturing("to query a stream");
    const auto key = FakeAccelerator::key(stream);
    return state().streams.is_done(key, state().streams.end(key));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    refuse_while_capturing("to wait for a stream");
    state().note("host waits for " + std::to_string(stream.id()));
    state().run(stream);
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    refuse_while_capturing("to wait for a device");
    state().note("host waits for the device");
    state().streams.finish_device(checked(device));
  }
  bool isStreamCapturing(const c10::Stream&) const override { return state().is_capturing; }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    if (state().memory.keep_for(memory.get(), FakeAccelerator::key(stream)))
      state().note("keep for " + std::to_string(stream.id()));
  }
};

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return state().has_context(checked(device)); }
  c10::DeviceIndex deviceCount() const override { return kFakeDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = checked(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, checked(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* memory) const override { return fake_pinned_memory().contains(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &fake_pinned_memory(); }
  // Random numbers come from the CPU's: this one is there to be seeded.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<at::CPUGeneratorImpl>(); }
};

/// Lives until the process ends.
struct Registration {
  Registration()
      : operators(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__),
        others(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__) {
    static FakeGuard guard;
    static FakeHooks hooks;
    const c10::impl::DeviceGuardImplRegistrar registrar(kType, &guard);
    c10::register_privateuse1_backend("fake");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::SetAllocator(kType, &fake_device_allocator());
    register_fake_operators(operators);
    register_fake_fallback(others);
  }
  torch::Library operators, others;
};

}  // namespace

c10::Stream FakeAccelerator::stream(c10::StreamId id, c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

c10::StreamId FakeAccelerator::current(c10::Device device) { return stream_of(checked(device.index())); }

void FakeAccelerator::run(const c10::Stream& stream) { streams.finish(key(stream), streams.end(key(stream))); }

void FakeAccelerator::run_all() {
  for (int device = 0; device < kFakeDevices; ++device) streams.finish_device(device);
}

void FakeAccelerator::reset() {
  run_all();
  is_capturing = false;
  const std::lock_guard lock(mutex_);
  notes_.clear();
  contexts_.clear();
  taken_of_pool_ = 0;
}

std::vector<std::string> FakeAccelerator::take_notes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

void FakeAccelerator::note(std::string text) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(text));
}

int FakeAccelerator::priority(const c10::Stream& stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = priorities_.find(key(stream));
  return found == priorities_.end() ? 0 : found->second;
}

void FakeAccelerator::set_context(c10::DeviceIndex device, std::optional<bool> has_context) {
  const std::lock_guard lock(mutex_);
  contexts_.erase(device);
  if (has_context) contexts_[device] = *has_context;
}

bool FakeAccelerator::has_context(c10::DeviceIndex device) const {
  const std::lock_guard lock(mutex_);
  const auto found = contexts_.find(device);
  return found == contexts_.end() ? memory.bytes(device).peak > 0 : found->second;
}

c10::Stream FakeAccelerator::pooled_stream(c10::Device device, int priority) {
  const std::lock_guard lock(mutex_);
  const auto taken = stream(1 + taken_of_pool_++ % kPooled, device);
  priorities_[key(taken)] = priority;
  return taken;
}

c10::Stream FakeAccelerator::new_stream(c10::Device device, int priority) {
  const std::lock_guard lock(mutex_);
  const auto made = stream(++last_new_, device);
  priorities_[key(made)] = priority;
  return made;
}

FakeAccelerator& fake_accelerator() {
  // Volatile, so that the pointer is kept although nobody reads it: LeakSanitizer looks for one.
  static Registration* volatile registration = new Registration;
  static_cast<void>(registration);
  return state();
}

}  // namespace ddp::testing
