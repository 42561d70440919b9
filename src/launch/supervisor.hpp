#pragma once
/// supervisor.hpp: keeps the ranks' process groups from their start until nothing of them is left.

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/options.hpp"
#include "start/outcome.hpp"
#include "launch/signals.hpp"
#include "start/start_rank.hpp"
#include "launch/watcher.hpp"

namespace ddp::launch {

using start::Outcome;
using start::RankStart;

/// A failed rank's peers get a grace time to end by themselves, with their own messages, then SIGTERM, then SIGKILL.
/// A signal from outside is passed on and starts the same way out, but for SIGUSR2, which asks ranks for their dumps.
/// Never signals the launcher's own group.
///
/// Threads: none; fork and exec need a process with one thread.
class Supervisor {
 public:
  Supervisor(const Options& options, Signals& signals, Watcher& watcher);
  /// Kills whatever still runs.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;

  /// Starts the next rank. Errors: see start_rank().
  void start(const RankStart& start);
  /// Returns when all ranks and their groups are gone.
  void run();

  const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { running, grace, stopping, killing };
  enum class State { running, leftovers, gone };
  struct Group {
    int rank;
    pid_t pid;
    State state = State::running;
    int sent = 0;             ///< last signal sent to the whole group
    Clock::time_point limit;  ///< of leftovers: SIGKILL then
  };

  void wait_for_event();
  void on_signal(int signal);
  void ask_for_dumps();
  void reap();
  void rank_ended(Group& group, int status);
  void look_after_leftovers();
  void on_deadline();

  void enter(Phase phase, std::chrono::milliseconds limit);
  void send_all(int signal);
  void send(Group& group, int signal);
  void close_if_empty(Group& group);
  std::string running_ranks() const;
  std::chrono::milliseconds patience(std::chrono::milliseconds fallback) const;

  const Options& options_;
  Signals& signals_;
  Watcher& watcher_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Group> groups_;
  std::vector<Outcome> outcomes_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace ddp::launch
