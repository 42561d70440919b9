#pragma once
/// processes.hpp: the processes of this machine, as /proc shows them.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/process_key.hpp"

namespace ddp::launch {

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t inner_pid = 0;       ///< in its own pid namespace
  uid_t user = 0;            ///< effective
  std::uint64_t caught = 0;  ///< signals that it has handlers for: number n is bit n - 1
  char state = '?';          ///< as in /proc: R, S, D, ..., T: stopped, t: stopped by a debugger, Z: ended
  std::string name = {};

  bool catches(int signal) const { return (caught >> static_cast<unsigned>(signal - 1) & 1U) != 0; }
  bool is_stopped() const { return state == 'T' || state == 't'; }
  ProcessKey key() const;
};

/// None where there is no such process. The number may be that of any of its threads.
std::optional<Process> find_process(pid_t pid);

/// Of this process, whose only thread calls it.
std::vector<pid_t> own_children();

/// What `pid` has started, and what those have started, nearest first.
std::vector<Process> descendants_of(pid_t pid);

}  // namespace ddp::launch
