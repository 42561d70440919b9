#include "reduce/bucket_flight.hpp"

#include <string>
#include <utility>

#include "comm/planned_calls.hpp"

namespace ddp {

void BucketFlight::start(BucketSet& buckets) {
  start_ = Clock::now();
  legs_.clear();
  stats_.buckets.assign(buckets.size(), {});
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    stats_.buckets[b].bytes = buckets[b].bytes();
    stats_.buckets[b].parameters = buckets.plan()[b].size();
  }
  is_timed_ = !group_->device().is_cpu() && !comm::PlannedCalls::is_capturing(*group_);
  if (!is_timed_) return;
  if (!times_ || times_->buckets() != buckets.size()) times_.emplace(group_->device(), buckets.size());
  times_->mark_start();
}

void BucketFlight::mark_full(std::size_t bucket) {
  stats_.buckets[bucket].full = elapsed();
  if (is_timed_) times_->mark_full(bucket);
}

void BucketFlight::mark_backward_done() {
  stats_.backward = elapsed();
  if (is_timed_) times_->mark_backward_done();
}

void BucketFlight::launch(BucketSet& buckets, std::size_t bucket) {
  buckets[bucket].settle();
  stats_.buckets[bucket].launched = elapsed();
  if (is_timed_) times_->mark_launched(bucket);
  auto& flat = buckets[bucket].flat();
  const auto& label = buckets.label(bucket);
  if (hook_)
    legs_.push_back({bucket, {}, hook_->launch(*group_, {buckets[bucket].gradients(), bucket, label})});
  else
    legs_.push_back({bucket, comm::PlannedCalls::all_reduce(*group_, flat, {.label = label}, op_), {}});
}

void BucketFlight::launch(at::Tensor& tensor, const char* label) {
  legs_.push_back({LaunchQueue::kNoBucket, comm::PlannedCalls::all_reduce(*group_, tensor, {.label = label}), {}});
}

void BucketFlight::end(Leg& leg) {
  if (std::exchange(leg.has_ended, true)) return;
  if (leg.complete) leg.complete();
  leg.work.wait();
  if (leg.bucket == LaunchQueue::kNoBucket) return;
  if (is_timed_) times_->mark_ended(leg.bucket, leg.work);
  const auto ended = leg.work.completed_at();
  stats_.buckets[leg.bucket].done = ended ? *ended - start_ : elapsed();
}

void BucketFlight::wait_for(std::size_t bucket) {
  for (auto& leg : legs_)
    if (leg.bucket == bucket) end(leg);
}

void BucketFlight::wait() {
  for (auto& leg : legs_) end(leg);
  legs_.clear();
}

void BucketFlight::mark_done(std::int64_t step) {
  stats_.step = step;
  stats_.exposed = elapsed() - stats_.backward;
  if (is_timed_) times_->mark_means_there();
  std::swap(last_, stats_);
  std::swap(last_times_, times_);
  is_last_timed_ = std::exchange(is_timed_, false);
}

const ReducerStats& BucketFlight::last() {
  if (std::exchange(is_last_timed_, false)) last_times_->fill(last_);
  return last_;
}

}  // namespace ddp
