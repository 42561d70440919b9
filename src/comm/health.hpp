#pragma once
/// health.hpp: whether a group still works, and if not, why. Whoever waits for a collective waits
/// here, so that a completion and a failure wake him alike. Knows no torch.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "comm/flight_recorder.hpp"
#include "comm/peer_watch.hpp"
#include "ddp/error.hpp"

namespace ddp::comm {

/// Why a collective cannot complete.
struct Breakage {
  enum class Kind {
    peer_raised,     ///< a peer threw; `text` is its own
    peer_timed_out,  ///< the same for a call that did not end in time
    peer_lost,       ///< a peer died
    peer_left,       ///< a peer left in order while it was still needed
    peer_unknown,    ///< the connection broke and nobody could be named
    timed_out,
    mismatch,     ///< the ranks wait in calls that never meet
    failed_here,  ///< this rank has failed itself
  };
  Kind kind = Kind::failed_here;
  int peer = -1;
  std::string text;

  /// The peer's doing, so that this rank only echoes it.
  bool is_echo() const { return kind <= Kind::peer_unknown; }
  /// Throws the exception for this breakage; `part` names the call that met it.
  [[noreturn]] void raise(Origin origin, std::string_view part) const;
};

/// Threads: all members are safe.
class Health {
 public:
  Health(Origin origin, const FlightRecorder& recorder) : origin_(origin), recorder_(recorder) {}

  /// From the watch: a peer has failed or died.
  void peer_failed(const Failure& failure);
  /// From the watch: a peer has left in order after `last_call` calls.
  void peer_left(int rank, std::uint64_t last_call);
  /// The first breakage stays; true if this is it.
  bool break_with(Breakage breakage);

  std::optional<Breakage> breakage() const;
  /// Nothing is known to keep any call from completing.
  bool is_clear() const noexcept { return is_clear_; }
  /// What keeps call `number` from completing, if anything is known to.
  std::optional<Breakage> obstacle(std::uint64_t number) const;
  /// A rank that has left, whichever call it was after: the likely reason of a broken connection.
  std::optional<Breakage> departure() const;
  /// That of this rank.
  std::optional<Breakage> departure(int rank) const;

  /// Runs `change` and wakes all who wait.
  template <class Change>
  void update(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  /// What `done()` says under the lock.
  template <class Done>
  bool look(Done done) const {
    const std::lock_guard lock(mutex_);
    return done();
  }

  /// Waits until `done()` (called under the lock), an obstacle to call `number`, or the deadline.
  template <class Done>
  void wait(std::uint64_t number, std::chrono::steady_clock::time_point deadline, Done done) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return done() || find_obstacle(number).has_value(); });
  }
  /// The same for `limit`, whatever the obstacles.
  template <class Done>
  void wait_despite_obstacles(std::chrono::milliseconds limit, Done done) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, done);
  }

 private:
  std::optional<Breakage> find_obstacle(std::uint64_t number) const;
  Breakage departure_of(int rank, std::uint64_t last_call) const;

  const Origin origin_;
  const FlightRecorder& recorder_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Breakage> breakage_;
  std::map<int, std::uint64_t> left_;  // rank to its last call
  std::atomic<bool> is_clear_{true};   // neither of them says anything
};

}  // namespace ddp::comm
