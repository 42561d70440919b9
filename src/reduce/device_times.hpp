#pragma once
/// device_times.hpp: when a device came to the parts of one reduction, by its own clock.

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "ddp/reducer_stats.hpp"
#include "ddp/work.hpp"

namespace ddp {

/// Each mark is an event on the current stream, which costs the host a microsecond and the device nothing.
/// Threads: one at a time.
class DeviceTimes {
 public:
  DeviceTimes(c10::Device device, std::size_t buckets);

  std::size_t buckets() const { return buckets_.size(); }
  /// The marks of an earlier round are forgotten.
  void mark_start();
  void mark_full(std::size_t bucket);
  void mark_launched(std::size_t bucket) { buckets_[bucket].launched.record(current()); }
  /// On a stream of its own that waits for the communication alone. `work` has been waited for before.
  void mark_ended(std::size_t bucket, const Work& work);
  void mark_backward_done() { backward_.record(current()); }
  void mark_means_there() { means_.record(current()); }

  /// Waits on the host until the device has come to the last mark, and sets the times in `stats`.
  void fill(ReducerStats& stats) const;

 private:
  struct Marks {
    c10::Event full, launched, ended;
    bool has_been_full = false;
  };
  c10::Stream current() const;
  std::chrono::nanoseconds since_start(const c10::Event& event) const;

  c10::Device device_;
  c10::Stream waiting_;
  c10::Event start_, backward_, means_;
  std::vector<Marks> buckets_;
};

}  // namespace ddp
