#pragma once
/// call_record.hpp: which collectives this rank has entered and completed, for errors, goodbyes and
/// the status line that other ranks ask for. Knows no torch.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace ddp::comm {

/// How the ranks come together in a call.
enum class Meeting : std::uint8_t {
  signatures,  ///< they compare what they have called before anything is sent
  plan,        ///< they have agreed on it before
  roll_call,   ///< each looks in the store for the others
};

/// One collective call. Numbers count from 1 and agree between the ranks.
/// A message between two ranks has number 0: the others do not count it.
struct Call {
  std::uint64_t number = 0;
  std::string operation;   ///< "all_reduce"
  std::string amount;      ///< "64 floats"; empty where nothing is moved
  std::string label;       ///< the caller's, may be empty
  std::int64_t step = -1;  ///< -1: no step was marked
  int peer = -1;           ///< a message's other rank
  Meeting meeting = Meeting::signatures;

  /// `all_reduce #12 "bucket 1", step 5`
  std::string name() const;
  /// `all_reduce #12 "bucket 1" (64 floats) in step 5`
  std::string description() const;
  /// Calls of one number end only where these are equal on all ranks.
  std::string kind() const;
};

/// Threads: all members are safe.
class CallRecord {
 public:
  void mark_step(std::int64_t step) noexcept;

  /// The call that this would be, without beginning it.
  Call next(std::string operation, std::string amount, std::string label) const;
  /// Numbers the call and notes that it has begun.
  Call enter(std::string operation, std::string amount, std::string label, Meeting meeting = Meeting::signatures);
  /// Notes that a message has begun.
  void enter_message(const Call& call);
  void complete(const Call& call);

  std::uint64_t entered() const;
  /// The first call that has not ended, then up to `before` of those made before it, the latest first.
  /// Empty while no call is under way.
  std::vector<Call> first_open(std::size_t before) const;
  /// The step in which this rank entered call `number`, or will enter the next; unknown once it is long ago.
  std::optional<std::int64_t> step_of(std::uint64_t number) const;
  /// "last completed all_reduce #3 (64 floats) in step 2, now in barrier #4 in step 2 since 12.3 s"
  std::string status() const;

 private:
  static constexpr std::size_t kCallsKept = 256;  // more than the collectives of one step as a rule

  struct Entry {
    Call call;
    bool has_ended = false;
  };
  const Entry& entry(std::uint64_t number) const { return recent_[number % kCallsKept]; }

  mutable std::mutex mutex_;
  std::int64_t step_ = -1;
  std::uint64_t entered_ = 0;
  std::vector<Entry> recent_ = std::vector<Entry>(kCallsKept);  // call n in place n % kCallsKept
  std::optional<Call> last_completed_;
  std::chrono::steady_clock::time_point entered_at_{};
  std::multiset<std::string> messages_;  // descriptions of those under way
};

}  // namespace ddp::comm
