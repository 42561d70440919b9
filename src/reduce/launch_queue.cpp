#include "reduce/launch_queue.hpp"

#include <utility>

namespace ddp {

LaunchQueue::LaunchQueue(std::vector<std::size_t> bucket_of, std::size_t buckets)
    : bucket_of_(std::move(bucket_of)),
      awaited_(bucket_of_.size(), 0),
      arrivals_(bucket_of_.size(), 0),
      missing_(buckets, 0) {}

void LaunchQueue::start(const std::vector<std::uint32_t>& expected) {
  const std::lock_guard lock(mutex_);
  awaited_ = expected;
  arrivals_.assign(arrivals_.size(), 0);
  missing_.assign(missing_.size(), 0);
  for (std::size_t i = 0; i < bucket_of_.size(); ++i)
    if (bucket_of_[i] != kNoBucket && awaited_[i] > 0) ++missing_[bucket_of_[i]];
  next_ = 0;
  closed_ = false;
}

bool LaunchQueue::stop_waiting(std::size_t i) { return bucket_of_[i] != kNoBucket && --missing_[bucket_of_[i]] == 0; }

bool LaunchQueue::forgo(std::size_t i) {
  const std::lock_guard lock(mutex_);
  return std::exchange(awaited_[i], 0) > 0 && stop_waiting(i);
}

bool LaunchQueue::arrive(std::size_t i) {
  const std::lock_guard lock(mutex_);
  ++arrivals_[i];
  if (awaited_[i] == 0) return false;
  --awaited_[i];
  return awaited_[i] == 0 && stop_waiting(i);
}

void LaunchQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

std::optional<std::size_t> LaunchQueue::pop() {
  const std::lock_guard lock(mutex_);
  if (next_ == missing_.size() || is_open(next_)) return std::nullopt;
  return next_++;
}

std::uint32_t LaunchQueue::arrivals(std::size_t i) const {
  const std::lock_guard lock(mutex_);
  return arrivals_[i];
}

bool LaunchQueue::has_left(std::size_t i) const {
  const std::lock_guard lock(mutex_);
  return bucket_of_[i] != kNoBucket && bucket_of_[i] < next_;
}

bool LaunchQueue::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace ddp
