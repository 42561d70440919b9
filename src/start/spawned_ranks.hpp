#pragma once
/// spawned_ranks.hpp: looks after the ranks that spawn() has started, until all have ended.

#include <chrono>
#include <optional>
#include <vector>

#include "start/child.hpp"
#include "start/outcome.hpp"
#include "start/spawn_report.hpp"

namespace ddp::start {

/// Threads: one. Lifetime: the destructor kills what still runs.
class SpawnedRanks {
 public:
  struct Rank {
    int rank = 0;
    Child process;
    Descriptor report;
    SpawnHeard heard = {};
    bool is_running = true;
    int sent = 0;                         ///< the last signal from here, 0 for none
    std::optional<Outcome> failure = {};  ///< as soon as it is known

    bool failed() const { return failure.has_value(); }
  };

  /// `patience` is the time from SIGTERM to SIGKILL, at most a day.
  explicit SpawnedRanks(std::chrono::milliseconds patience);

  /// `report` is the pipe that the rank writes its SpawnReport to.
  void add(int rank, pid_t pid, Descriptor report);
  /// Returns when all have ended. Once one has failed the others have a grace time, then they are ended.
  void wait();
  /// Of those that have ended, the one that failed first, and no echo of another; null: none failed.
  const Rank* first_failed() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { running, grace, stopping, killing };

  void wait_for_event() const;
  static void listen(Rank& rank);
  void look_at(Rank& rank);
  void note_failure(Rank& rank, int status);
  void on_deadline();
  void enter(Phase phase, std::chrono::milliseconds limit);
  void send_all(int signal);

  std::chrono::milliseconds patience_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace ddp::start
