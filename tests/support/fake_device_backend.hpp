#pragma once
/// fake_device_backend.hpp: the engine of the fake accelerator, as comm::device_backend() may know it.
///
///   comm::add_device_backend(std::make_unique<FakeDeviceBackend>());

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/device_backend.hpp"
#include "support/fake_accelerator.hpp"

namespace ddp::testing {

/// What tests say to all engines of this process, and hear from them.
class FakeEngineState {
 public:
  std::atomic<int> visible{kFakeDevices};
  /// As if all ranks saw one device.
  std::atomic<bool> is_shared{false};
  std::atomic<int> library_version{1};
  /// It makes the engine of a sub-group out of the larger one's, with all ranks of that.
  std::atomic<bool> splits{false};

  /// How often isCompleted() of a work has to be asked before the device goes on by itself; negative: it never does.
  std::atomic<int> polls_until_progress{3};
  /// While true, calls begin as early as allowed instead: what their stream was not made to wait for is not there yet.
  std::atomic<bool> is_early{false};
  /// While true, calls end with an exception when their turn comes.
  std::atomic<bool> fails{false};

  /// "take 1", "make on 0", "allreduce avg 40 on stream 101 while current was 0", "0 waits for allreduce avg 40",
  /// "allocate 10", "abort", "shutdown"; numbers in the names of calls are bytes.
  std::vector<std::string> take_notes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(notes_, {});
  }
  void note(std::string text) {
    const std::lock_guard lock(mutex_);
    notes_.push_back(std::move(text));
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> notes_;
};
FakeEngineState& fake_engine();

class FakeDeviceBackend final : public comm::DeviceBackend {
 public:
  std::string name() const override { return "fake"; }
  at::DeviceType type() const override { return at::DeviceType::PrivateUse1; }
  int visible() const override { return fake_engine().visible; }
  void take(at::Device device) const override;
  comm::DeviceIdentity identity(at::Device device) const override;
  c10::intrusive_ptr<c10d::Backend> make(const comm::BackendSetup& setup) const override;
  c10::intrusive_ptr<c10d::Backend> split(c10d::Backend& parent, const comm::BackendSetup& setup,
                                          const std::vector<int>& ranks) const override;
  bool can_split() const override { return fake_engine().splits; }
  /// FakeAccelerator::is_capturing.
  bool is_capturing(at::Device device) const override;
};

}  // namespace ddp::testing
