#pragma once
/// start_rank.hpp: one rank's process, by fork and exec.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace ddp::start {

struct RankStart {
  std::string program;                      ///< a path
  std::vector<std::string> arguments;       ///< argv, with the program as it was typed first
  std::vector<std::string> environment;     ///< "NAME=value"
  std::vector<int> kept_descriptors = {};   ///< survive exec beside 0, 1 and 2
  int input = -1, output = -1, error = -1;  ///< become 0, 1 and 2; -1: the caller's own
  std::vector<int> cores = {};              ///< the only ones it may use; empty: the caller's
  const char* part = "ddprun";              ///< who speaks in errors
  bool own_group = true;                    ///< leads a process group of its own
};

/// The process dies with the thread that calls this. It inherits standard input unless that is a terminal and the
/// process has a group of its own: only the foreground may read it.
/// `in_child` runs in the new process before the program. Where the caller has several threads, only calls that are
/// safe in a signal handler may stand in it. Returns the process's id once the program runs. Errors: ConfigError when
/// the system cannot run the program.
pid_t start_rank(const RankStart& start, const std::function<void()>& in_child);

}  // namespace ddp::start
