#pragma once
/// bucket_flight.hpp: the communication of one round's buckets, and its times.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/comm_hook.hpp"
#include "ddp/process_group.hpp"
#include "ddp/reducer_stats.hpp"
#include "reduce/bucket_set.hpp"
#include "reduce/device_times.hpp"

namespace ddp {

/// Threads: one at a time; the reducer's lock covers it.
class BucketFlight {
 public:
  /// `hook` is null where buckets are plainly all-reduced, by `op`.
  BucketFlight(std::shared_ptr<ProcessGroup> group, std::shared_ptr<CommHook> hook, ReduceOp op)
      : group_(std::move(group)), hook_(std::move(hook)), op_(op) {}

  void start(BucketSet& buckets);
  void mark_full(std::size_t bucket);
  /// Collective, in the same order on all ranks. Starts the bucket's way.
  void launch(BucketSet& buckets, std::size_t bucket);
  /// Collective. Starts a tensor of the library's own, which no hook touches, behind the buckets.
  void launch(at::Tensor& tensor, const char* label);
  void mark_backward_done();
  /// Waits for this bucket's end; LaunchQueue::kNoBucket: for that of the library's own tensor.
  void wait_for(std::size_t bucket);
  /// Waits for all that was launched.
  void wait();
  void mark_done(std::int64_t step);

  /// Of the last round. On a device this waits for the end of that round there.
  const ReducerStats& last();

 private:
  using Clock = std::chrono::steady_clock;
  struct Leg {
    std::size_t bucket;  // kNoBucket: none
    Work work;
    std::function<void()> complete;  // of a hook
    bool has_ended = false;
  };

  void end(Leg& leg);
  std::chrono::nanoseconds elapsed() const { return Clock::now() - start_; }

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<CommHook> hook_;
  const ReduceOp op_;
  std::vector<Leg> legs_;
  Clock::time_point start_;
  ReducerStats stats_;  // of the round under way
  ReducerStats last_;
  std::optional<DeviceTimes> times_, last_times_;  // on a device
  bool is_timed_ = false, is_last_timed_ = false;  // the latter: and not asked for yet
};

}  // namespace ddp
