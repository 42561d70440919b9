#pragma once
/// launcher.hpp: one node's part of a job, from the first attempt to the end.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/file_limit.hpp"
#include "launch/local_ranks.hpp"
#include "launch/meeting.hpp"
#include "launch/options.hpp"
#include "launch/processes.hpp"
#include "launch/relay.hpp"
#include "launch/say.hpp"
#include "launch/signals.hpp"
#include "launch/store_keeper.hpp"
#include "launch/watcher.hpp"
#include "start/rank_environment.hpp"

namespace ddp::launch {

/// The ranks of this node, as they are to be started.
struct RankPlan {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< the launcher's own
  start::Job job;                        ///< of the first attempt
  std::vector<std::vector<int>> cores;   ///< of each local rank; empty: not bound
};

class Launcher {
 public:
  Launcher(const Options& options, RankPlan plan, Meeting meeting, Signals& signals);

  /// Returns the exit code. Errors: ConfigError where the program cannot be run.
  int run();

 private:
  struct Attempt {
    Attempt(const Options& options, Watcher& watcher, const std::function<void()>& restore)
        : ranks(options.shutdown_timeout, watcher, restore) {}
    std::unique_ptr<Relay> relay;  // none: the ranks have the launcher's streams
    std::unique_ptr<SayThrough> says;
    std::unique_ptr<StoreKeeper> store;  // of node 0
    LocalRanks ranks;
    bool is_draining = false;  // the ranks are gone, their last words not
  };

  void wait();
  void look();
  void obey(const Command& command);
  void begin(int number);
  void start_ranks(int number);
  void on_signal(int signal);
  void notice_lost_relay();
  void end_strays();
  void end_attempt();

  const Options& options_;
  const RankPlan plan_;
  const Terms terms_;
  const std::unique_ptr<Nodes> nodes_;
  Signals& signals_;
  const std::vector<pid_t> children_before_ = own_children();
  const FileLimit limit_;
  Watcher watcher_;
  std::string log_folder_;
  std::unique_ptr<Attempt> attempt_;
  std::optional<Clock::time_point> interrupted_;
  std::optional<int> exit_code_;
};

}  // namespace ddp::launch
