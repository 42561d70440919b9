#pragma once
/// launch_queue.hpp: gradients arrive in any order; buckets leave in plan order, the same on every rank.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace ddp {

/// Threads: all members are safe. What a thread has done before its arrive() is visible to the one whose pop() gets
/// the bucket.
class LaunchQueue {
 public:
  /// Stands for the bucket of a gradient that travels in none.
  static constexpr std::size_t kNoBucket = ~std::size_t{0};

  /// bucket_of[i]: where gradient i travels. The last bucket waits for close(), full or not.
  LaunchQueue(std::vector<std::size_t> bucket_of, std::size_t buckets);

  /// Starts a round in which gradient i is awaited expected[i] times; 0: it holds up nothing.
  void start(const std::vector<std::uint32_t>& expected);
  /// From now on gradient i is not awaited any more in this round. True if its bucket was waiting for it alone.
  bool forgo(std::size_t i);
  /// Counts an arrival of gradient i, awaited or not. True if it is the last that its bucket was waiting for.
  bool arrive(std::size_t i);
  /// No more gradients come: all that is left may leave.
  void close();

  /// The next bucket that may leave now; none while an earlier one is not full.
  std::optional<std::size_t> pop();

  std::uint32_t arrivals(std::size_t i) const;
  /// True if gradient i's bucket has left in this round.
  bool has_left(std::size_t i) const;
  bool is_closed() const;

 private:
  bool is_open(std::size_t bucket) const { return !closed_ && (bucket + 1 == missing_.size() || missing_[bucket] > 0); }
  bool stop_waiting(std::size_t i);

  mutable std::mutex mutex_;
  const std::vector<std::size_t> bucket_of_;
  std::vector<std::uint32_t> awaited_;   // arrivals still to come, by gradient
  std::vector<std::uint32_t> arrivals_;  // by gradient
  std::vector<std::size_t> missing_;     // gradients that are awaited, by bucket
  std::size_t next_ = 0;
  bool closed_ = false;
};

}  // namespace ddp
