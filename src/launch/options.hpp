#pragma once
/// options.hpp: ddprun's command line, with torchrun's names.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "launch/output_plan.hpp"

namespace ddp::launch {

struct Options {
  int ranks = 1;  ///< of this node
  int nodes = 1;
  int node_rank = 0;
  std::string master_address;     ///< of node 0; empty: one node, by the loopback
  std::uint16_t master_port = 0;  ///< 0: any that is free, of one node
  std::string local_address;      ///< of this node; empty: as the system chooses
  std::string job_id;             ///< empty: ddprun makes one
  std::string role = "default";
  int max_restarts = 0;
  std::chrono::milliseconds join_timeout{600'000};  ///< for all nodes to be there; torchrun's value
  /// From SIGTERM to SIGKILL. Unset: 30 s after a signal from outside (ranks may be saving), 5 s after a rank failed.
  std::optional<std::chrono::milliseconds> shutdown_timeout;
  std::chrono::milliseconds exit_grace{300'000};  ///< for others once a rank has ended well; torchrun's exit barrier
  OutputOptions output;
  bool binds_cores = false;
  bool only_shows = false;           ///< --dry-run
  std::string check;                 ///< DDP_CHECK for the ranks; empty: as it is
  std::vector<std::string> command;  ///< the program and its arguments, untouched
  std::optional<pid_t> inspected;    ///< a running process to ask instead; nothing is started then
};

/// Empty when only help or the version was asked for, which then went to `out`. Flags that are not given are taken from
/// torchrun's variables, PET_NNODES and so on.
/// Errors: ConfigError in one line for a flag that is unknown, malformed, of torchrun's but not served, or contradicts
/// another, or no program.
std::optional<Options> parse_options(int argc, const char* const* argv, std::ostream& out);

}  // namespace ddp::launch
