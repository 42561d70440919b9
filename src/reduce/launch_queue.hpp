#pragma once
/// launch_queue.hpp: buckets fill in any order and leave in plan order, the same on every rank.

#include <cstddef>
#include <optional>
#include <vector>

namespace ddp {

/// Threads: one at a time; the reducer's lock covers it.
class LaunchQueue {
 public:
  explicit LaunchQueue(std::size_t buckets) : full_(buckets, false) {}

  void mark_full(std::size_t bucket) { full_[bucket] = true; }

  /// The next bucket that may be launched now; none while an earlier one is not full.
  std::optional<std::size_t> pop() {
    if (next_ == full_.size() || !full_[next_]) return std::nullopt;
    return next_++;
  }

  bool is_drained() const { return next_ == full_.size(); }

  /// Forgets the round.
  void reset() {
    full_.assign(full_.size(), false);
    next_ = 0;
  }

 private:
  std::vector<bool> full_;
  std::size_t next_ = 0;
};

}  // namespace ddp
