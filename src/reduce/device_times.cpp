#include "reduce/device_times.hpp"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp {
namespace {

c10::Event timed(c10::Device device) { return {device.type(), c10::EventFlag::BACKEND_DEFAULT}; }

}  // namespace

DeviceTimes::DeviceTimes(c10::Device device, std::size_t buckets)
    : device_(device),
      waiting_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      start_(timed(device)),
      backward_(timed(device)),
      means_(timed(device)) {
  for (std::size_t b = 0; b < buckets; ++b) buckets_.push_back({timed(device), timed(device), timed(device)});
}

c10::Stream DeviceTimes::current() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

void DeviceTimes::mark_start() {
  for (auto& marks : buckets_) marks.has_been_full = false;
  start_.record(current());
}

void DeviceTimes::mark_full(std::size_t bucket) {
  buckets_[bucket].full.record(current());
  buckets_[bucket].has_been_full = true;
}

void DeviceTimes::mark_ended(std::size_t bucket, const Work& work) {
  const c10::StreamGuard on_waiting(waiting_);
  work.wait();
  buckets_[bucket].ended.record(waiting_);
}

std::chrono::nanoseconds DeviceTimes::since_start(const c10::Event& event) const {
  start_.synchronize();
  event.synchronize();
  const std::chrono::duration<double, std::milli> elapsed(start_.elapsedTime(event));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed);
}

void DeviceTimes::fill(ReducerStats& stats) const {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].has_been_full) stats.buckets[b].full = since_start(buckets_[b].full);
    stats.buckets[b].launched = since_start(buckets_[b].launched);
    stats.buckets[b].done = since_start(buckets_[b].ended);
  }
  stats.backward = since_start(backward_);
  stats.exposed = since_start(means_) - stats.backward;
}

}  // namespace ddp
