#pragma once
/// fake_accelerator.hpp: devices in this process's memory that LibTorch takes for an accelerator.
///
///   auto& accelerator = fake_accelerator();               // before the process's first backward()
///   auto x = torch::ones({2}, kFakeDevice);               // all operators are there
///   c10::StreamGuard guard(accelerator.stream(1));        // streams are LibTorch's: guards, c10::Event, record_stream
///
/// A stream's work is done as late as allowed: when the host waits for it, when an operator of its stream needs its
/// result, when what waits for it by an event has to be done, or when an event is asked for the fourth time. Another
/// stream that does not wait by an event reads what was there before. Operators compute at once, but their results
/// reach the device's memory that late. What was freed while another stream still had to read it, without
/// record_stream(), is overwritten.

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/fake_memory.hpp"
#include "support/fake_streams.hpp"

namespace ddp::testing {

inline constexpr c10::DeviceIndex kFakeDevices = 4;
inline const c10::Device kFakeDevice(c10::DeviceType::PrivateUse1, 0);
inline const c10::Device kSecondFakeDevice(c10::DeviceType::PrivateUse1, 1);

/// Of all the devices. Threads: all members are safe; each thread has a current device and current streams.
class FakeAccelerator {
 public:
  /// The stream of that number; 0 is the one that is current in the beginning, the pool's are 1 to 4.
  static c10::Stream stream(c10::StreamId id, c10::Device device = kFakeDevice);
  static FakeStreamKey key(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }
  static c10::StreamId current(c10::Device device = kFakeDevice);

  /// Does all that was given to a stream, or to any: some ways that a device may take are not the latest ones.
  void run(const c10::Stream& stream);
  void run_all();
  /// What was freed is overwritten, notes and settings are forgotten, and the next stream of the pool is its first.
  void reset();

  /// What happened since the last call, with the numbers of streams: "copy on 1", "copy on 1 from pinned",
  /// "copy back on 0", "copy back on 0 to pinned", "copy within on 0", "record 1", "0 waits", "keep for 0",
  /// "host waits for 0", "host waits for the device". Of copies only those that operators do not make.
  std::vector<std::string> take_notes();
  void note(std::string text);

  /// How often pinned memory was allocated.
  int pinnings() const { return fake_pinned_memory().allocations(); }
  /// In use by tensors.
  std::int64_t live_bytes(c10::DeviceIndex device = 0) const { return memory.bytes(device).current; }
  /// That the stream was asked to have.
  int priority(const c10::Stream& stream) const;
  /// While true, asking for or waiting for an end throws on the host, as it does during the capture of a graph.
  std::atomic<bool> is_capturing{false};
  /// Whether a device has a context: by itself, once it has allocated.
  void set_context(c10::DeviceIndex device, std::optional<bool> has_context);
  bool has_context(c10::DeviceIndex device) const;

  c10::Stream pooled_stream(c10::Device device, int priority);
  c10::Stream new_stream(c10::Device device, int priority);

  FakeStreams streams;
  FakeMemory memory{streams};

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> notes_;
  std::map<FakeStreamKey, int> priorities_;
  std::map<c10::DeviceIndex, bool> contexts_;
  c10::StreamId taken_of_pool_ = 0;
  c10::StreamId last_new_ = 100;
};

/// From the first call on it is this process's accelerator.
FakeAccelerator& fake_accelerator();

}  // namespace ddp::testing
