#pragma once
/// local_ranks.hpp: keeps one attempt's ranks of this machine from their start until nothing of them is left.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/watcher.hpp"
#include "start/outcome.hpp"
#include "start/start_rank.hpp"

namespace ddp::launch {

using start::Outcome;
using start::RankStart;
using Clock = std::chrono::steady_clock;

/// Each rank leads a process group of its own. Once one has failed, here or on another machine, the others get a grace
/// time to end by themselves, with their own messages, then SIGTERM, then SIGKILL. A signal from outside is passed on
/// and starts the same way out, but for SIGUSR1 and SIGUSR2, which ask ranks for something.
/// Never signals the launcher's own group.
///
/// Threads: none; fork and exec need a process with one thread.
class LocalRanks {
 public:
  /// `restore` gives a new process what the launcher was given, of which it has changed its own: signals, limits.
  /// `shutdown_timeout`: from SIGTERM to SIGKILL; unset: 30 s after a signal from outside, 5 s after a failure.
  LocalRanks(std::optional<std::chrono::milliseconds> shutdown_timeout, Watcher& watcher,
             std::function<void()> restore);
  /// Kills whatever still runs.
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;

  /// Errors: see start::start_rank().
  void start(int rank, const RankStart& start);

  /// Sees what has ended, and does what is due. Gives the ranks that have ended since the last call.
  std::vector<Outcome> look();
  /// When to look again though no child has ended.
  std::optional<Clock::time_point> next_look() const;
  /// All ranks and their groups are gone.
  bool are_gone() const;

  /// They have no reason to run on: another one has failed, say. `has_waited`: they had their time already.
  void let_end(bool has_waited);
  /// SIGUSR1 and SIGUSR2 go to those processes alone that handle them, for others would end; a rank's whole group gets
  /// any other one.
  void pass_on(int signal);
  void kill();

  /// Of the ranks that run: "rank 0", "ranks 0, 2"; empty: none.
  std::string running() const;
  /// The process that was started as this rank. 0 once it has ended.
  pid_t process_of(int rank) const;

 private:
  enum class Phase { running, grace, stopping, killing };
  enum class State { running, leftovers, gone };
  struct Group {
    int rank;
    pid_t pid;
    State state = State::running;
    int sent = 0;             ///< last signal sent to the whole group
    Clock::time_point limit;  ///< of leftovers: SIGKILL then
  };

  void ask(int signal);
  void reap();
  void rank_ended(Group& group, int status);
  void look_after_leftovers();
  void on_deadline();

  void enter(Phase phase, std::chrono::milliseconds limit);
  void send_all(int signal);
  void send(Group& group, int signal);
  void close_if_empty(Group& group);
  bool has_leftovers() const;
  std::chrono::milliseconds patience(std::chrono::milliseconds fallback) const;

  std::optional<std::chrono::milliseconds> shutdown_timeout_;
  Watcher& watcher_;
  std::function<void()> restore_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Group> groups_;
  std::vector<Outcome> ended_;
  Phase phase_ = Phase::running;
  std::set<int> passed_on_;
  bool is_signalled_ = false;  // from outside
  std::optional<Clock::time_point> deadline_;
};

}  // namespace ddp::launch
