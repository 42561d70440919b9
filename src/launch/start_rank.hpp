#pragma once
/// start_rank.hpp: one rank's process, by fork and exec.

#include <sys/types.h>

#include <string>
#include <vector>

namespace ddp::launch {

class Signals;
class Watcher;

struct RankStart {
  std::string program;                   ///< a path
  std::vector<std::string> arguments;    ///< argv, with the program as it was typed first
  std::vector<std::string> environment;  ///< "NAME=value"
  int kept_descriptor = -1;              ///< survives exec beside 0, 1 and 2; -1: none
};

/// The process leads a process group of its own, is known to `watcher`, and dies with the launcher. It inherits
/// standard input unless that is a terminal, which only the foreground may read.
/// Returns its id once the program runs. Errors: ConfigError when the system cannot run the program.
pid_t start_rank(const RankStart& start, const Signals& signals, Watcher& watcher);

}  // namespace ddp::launch
