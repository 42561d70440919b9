#pragma once
/// watch_verdict.hpp: which of several reported failures is the cause.

#include <chrono>
#include <optional>
#include <vector>

#include "comm/peer_watch.hpp"

namespace ddp::comm::watch {

/// The first failure wins, except that an echo (a rank only met another one's failure) waits for
/// the real one, for a bounded time; that an echoing rank then ends is no cause either.
class Verdict {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Verdict(std::chrono::milliseconds echo_wait) : echo_wait_(echo_wait) {}

  void add(Failure failure, Clock::time_point now);
  /// When an echo becomes the cause; none while there is nothing to wait for.
  std::optional<Clock::time_point> due() const;
  /// The cause, once it is certain or, with `now` past due(), as good as it gets.
  std::optional<Failure> cause(Clock::time_point now) const;

 private:
  std::chrono::milliseconds echo_wait_;
  std::optional<Failure> first_;
  bool certain_ = false;
  Clock::time_point due_{};
  std::vector<int> echoes_;
};

}  // namespace ddp::comm::watch
