#pragma once
/// flight_recorder.hpp: the last calls of this rank in a group: what, in which step and phase, when queued, started and
/// ended. For errors, for the status line that other ranks ask for, for dumps.

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/call.hpp"
#include "comm/call_record.hpp"

namespace ddp::comm {

/// A call with its later times, on the steady clock; unset: not yet.
struct RecordedCall {
  using Time = std::chrono::steady_clock::time_point;
  Call call;  ///< its label may be cut; more than six dimensions have their last ones multiplied together
  const char* phase = "";
  std::optional<Time> started;  ///< the backend has its data
  std::optional<Time> ended;
};

/// Whether a call's data goes to the backend as soon as it is entered.
enum class Start { later, at_once };

/// Threads: all members are safe; nobody ever waits. One of them numbers calls at a time, in the order that all ranks
/// share.
class FlightRecorder {
 public:
  static constexpr std::size_t kKept = 2048;  ///< calls, messages among them

  FlightRecorder();

  void mark_step(std::int64_t step) noexcept { step_ = step; }
  /// The program's own mark wins.
  std::int64_t step() const noexcept;

  /// Notes that the call has begun, and sets its number (none for a message), step, ticket and time.
  void enter(Call& call, Start start = Start::later) noexcept;
  void start(std::uint64_t ticket) noexcept;
  void complete(const Call& call) noexcept;

  std::uint64_t entered() const noexcept { return entered_; }
  /// The number of the latest that has ended; 0: none.
  std::uint64_t last_completed() const noexcept { return last_completed_; }
  /// The thread that has made the latest call; 0: there was none.
  pid_t caller() const noexcept { return caller_.load(std::memory_order_relaxed); }
  /// Runs `look` on each call that is still known, the oldest first, as they are while it runs. Takes no memory: safe
  /// in a signal's handler.
  template <class Look>
  void for_each(Look look) const {
    TimedRecord record;
    const auto made = tickets_.load();
    for (auto ticket = made < kKept ? 0 : made - kKept; ticket < made; ++ticket)
      if (read(ticket, record)) look(std::as_const(record));
  }
  /// The same as values.
  std::vector<RecordedCall> calls() const;
  /// The first call that has not ended, then up to `before` of those made before it, the latest first.
  /// Empty while no call is under way.
  std::vector<Call> first_open(std::size_t before) const;
  /// A thread has begun to wait for long in the first open call; false: so it was before.
  bool note_wait(std::uint64_t number) noexcept { return waits_.exchange(number) != number; }
  void end_wait() noexcept {
    if (waits_.load(std::memory_order_relaxed) != 0) waits_ = 0;
  }
  /// The call in which a thread waits for long.
  std::optional<Call> waited_in() const;
  /// The call or message that has been open for longest.
  std::optional<Call> oldest_open() const;
  /// What this rank called under `number`, if that is known still.
  std::optional<RecordedCall> call(std::uint64_t number) const;
  /// The step in which this rank entered call `number`, or will enter the next; unknown once it is long ago.
  std::optional<std::int64_t> step_of(std::uint64_t number) const;
  /// "last completed all_reduce #3 (64 floats) in step 2, now in barrier #4 in step 2 since 12.3 s"
  std::string status() const;

 private:
  // Words, each of its own, so that a reader beside the writer does no harm; it sees by the version whether all of
  // them belong to one call. Three lines of a cache.
  static constexpr std::size_t kWords = 21;
  struct alignas(64) Place {
    std::atomic<std::uint64_t> version{0};  // 2 * ticket + 1 while it is written, then 2 * ticket + 2
    std::atomic<std::int64_t> started{0}, ended{0};
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };

  Place& place(std::uint64_t ticket) const { return places_[ticket % kKept]; }
  bool read(std::uint64_t ticket, TimedRecord& into) const noexcept;

  const std::unique_ptr<Place[]> places_;
  std::atomic<std::int64_t> step_{-1};
  std::atomic<std::uint64_t> tickets_{0}, entered_{0};
  std::atomic<std::uint64_t> last_completed_{0};  // number of the latest
  std::atomic<std::uint64_t> waits_{0};
  std::atomic<pid_t> caller_{0};
};

}  // namespace ddp::comm
