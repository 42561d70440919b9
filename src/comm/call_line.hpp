#pragma once
/// call_line.hpp: has calls enter the backend one after the other, in the order in which they were
/// made, although a call needs an answer from the other ranks before its data can leave.

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/work_state.hpp"

namespace ddp::comm {

class DeviceWatch;

/// Where a call ends that a device carries out.
struct EndOnDevice {
  std::shared_ptr<DeviceWatch> watch = nullptr;  ///< who learns of it; null: it ends on the host
  std::optional<c10::Stream> stream = {};        ///< the caller's
  bool is_recorded = false;                      ///< into a graph
};

/// Threads: all members are safe. Stages run on the caller's thread or on the backend's.
class CallLine : public std::enable_shared_from_this<CallLine> {
 public:
  using Pending = c10::intrusive_ptr<c10d::Work>;
  /// Starts one transfer; null where there is nothing to move. What it throws ends the call.
  using Stage = std::function<Pending()>;

  /// Runs each stage once the one before it has ended; the last one's end is the end of the call.
  /// Later calls wait until the last stage has begun. Where that one's transfer is on a device, `end` says who learns
  /// its end.
  void submit(std::shared_ptr<Work::State> state, std::vector<Stage> stages, EndOnDevice end = {});
  /// The call ends when `pending` does.
  static void follow(std::shared_ptr<Work::State> state, c10d::Work& pending);
  /// No call waits in it.
  bool is_idle() const { return !is_advancing_; }

 private:
  struct Entry {
    std::shared_ptr<Work::State> state;
    std::vector<Stage> stages;
    EndOnDevice end;
    std::size_t next = 0;
  };
  void advance();
  /// True when the call at the front waits for the end of a stage.
  bool begin_stages(Entry& entry);

  std::mutex mutex_;
  std::deque<Entry> waiting_;  // a deque: entries stay where they are
  std::atomic<bool> is_advancing_{false};
};

}  // namespace ddp::comm
