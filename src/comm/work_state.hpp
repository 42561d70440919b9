#pragma once
/// work_state.hpp: one collective under way: it ends by completion, by a breakage of its group, or in time. One that
/// was handed to a device is waited for there: the host goes on, and the current stream waits.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/session.hpp"
#include "ddp/work.hpp"

namespace ddp {

/// Threads: all members are safe.
struct Work::State {
 public:
  using Clock = std::chrono::steady_clock;

  /// `timeout` counts from when the call was queued.
  State(std::shared_ptr<comm::Session> session, comm::Call call, std::chrono::milliseconds timeout);

  /// Runs once, in the first wait() that succeeds: copies what arrived to where it belongs.
  void set_finish(std::function<void()> finish) { finish_ = std::move(finish); }

  /// From the backend, on any thread: the collective has ended, with `error` unless it is null.
  void complete(std::exception_ptr error) noexcept;

  /// The device has it; wait() returns from now on once the current stream waits for `work`.
  /// `stream` is the one behind which it works, and whose memory it uses.
  void begun(c10::intrusive_ptr<c10d::Work> work, const c10::Stream& stream) noexcept;
  /// Of such a call: the same as complete(), but an error breaks the group, for nobody may wait for this call any more.
  void complete_unseen(std::exception_ptr error) noexcept;
  /// Of such a call: it has lasted longer than its timeout, which is told to all.
  bool is_overdue() const { return Clock::now() > deadline_; }
  void expire() noexcept;
  /// The same where a rank has left without having made it: true if so.
  bool is_left_alone() noexcept;

  void wait();
  void wait(std::chrono::milliseconds timeout);
  bool is_completed();
  std::optional<Clock::time_point> completed_at();

 private:
  void wait_until(Clock::time_point deadline, std::chrono::milliseconds limit);
  [[noreturn]] void give_up(const std::exception_ptr& error, std::chrono::milliseconds limit);
  void break_unseen(comm::Breakage breakage, std::chrono::milliseconds grace) noexcept;
  void finish_once();
  void finish_on_device();

  const std::shared_ptr<comm::Session> session_;
  const comm::Call call_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  bool done_ = false;                         // under the health's lock
  Clock::time_point ended_;                   // under the health's lock
  std::exception_ptr error_;                  // under the health's lock
  c10::intrusive_ptr<c10d::Work> on_device_;  // under the health's lock
  std::optional<c10::Stream> stream_;         // the same
  std::mutex finishing_;
  std::function<void()> finish_;
  std::optional<c10::Event> finished_;  // on the stream of the first wait, which others come behind
};

}  // namespace ddp
