#pragma once
/// device_watch.hpp: learns how calls end that have been handed to a device, for nobody waits for them on the host.

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "base/descriptor.hpp"
#include "base/service_thread.hpp"
#include "comm/call_line.hpp"
#include "comm/device_backend.hpp"
#include "comm/session.hpp"
#include "comm/work_state.hpp"

namespace ddp::comm {

/// Asks the device at a steady pace, as long as calls are under way. A call that fails, or takes longer than its
/// timeout, breaks the group; and where the group breaks, whoever was first to find out, the backend is aborted, so
/// that the device does not wait for ever for ranks that will not come, and with it the program that waits for the
/// device. Threads: all members are safe.
class DeviceWatch {
 public:
  /// `backend` was made by `engine` on `device`.
  DeviceWatch(std::shared_ptr<const DeviceBackend> engine, at::Device device, c10::intrusive_ptr<c10d::Backend> backend,
              std::shared_ptr<Session> session);

  /// The call of `state` ends when `work` does. Calls end in the order in which they are given. One that is recorded
  /// into a graph has ended for the host; when the graph runs, all that is known is whether the group is whole.
  void follow(std::shared_ptr<Work::State> state, c10::intrusive_ptr<c10d::Work> work, const EndOnDevice& end);

 private:
  struct Followed {
    std::shared_ptr<Work::State> state;
    c10::intrusive_ptr<c10d::Work> work;
  };
  void run(int stop);
  /// True while calls are under way.
  bool look();
  std::optional<Followed> first();
  void end_hopeless();
  void drop_first();
  void abort_all() noexcept;

  const std::shared_ptr<const DeviceBackend> engine_;
  const at::Device device_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::shared_ptr<Session> session_;
  const Descriptor wake_;
  std::mutex mutex_;
  std::deque<Followed> under_way_;
  std::atomic<bool> has_recorded_{false};
  bool is_aborted_ = false;  // the thread's own
  ServiceThread thread_;     // last: it uses what stands above
};

}  // namespace ddp::comm
