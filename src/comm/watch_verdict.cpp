#include "comm/watch_verdict.hpp"

#include <algorithm>
#include <utility>

namespace ddp::comm::watch {

void Verdict::add(Failure failure, Clock::time_point now) {
  if (certain_) return;
  const bool echoed_before = std::find(echoes_.begin(), echoes_.end(), failure.rank) != echoes_.end();
  if (failure.kind == Failure::Kind::echo) {
    if (!first_) due_ = now + echo_wait_;
    if (!echoed_before) echoes_.push_back(failure.rank);
    if (!first_) first_ = std::move(failure);
    return;
  }
  if (failure.kind == Failure::Kind::lost && echoed_before) return;
  first_ = std::move(failure);
  certain_ = true;
}

std::optional<Verdict::Clock::time_point> Verdict::due() const {
  if (!first_ || certain_) return std::nullopt;
  return due_;
}

std::optional<Failure> Verdict::cause(Clock::time_point now) const {
  if (certain_ || (first_ && now >= due_)) return first_;
  return std::nullopt;
}

}  // namespace ddp::comm::watch
