#pragma once
/// options.hpp: ddprun's command line, with torchrun's names.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace ddp::launch {

struct Options {
  int ranks = 1;
  std::uint16_t master_port = 0;  ///< 0: any that is free
  /// From SIGTERM to SIGKILL. Unset: 30 s after a signal from outside (ranks may be saving), 5 s after a rank failed.
  std::optional<std::chrono::milliseconds> shutdown_timeout;
  std::vector<std::string> command;  ///< the program and its arguments, untouched
  std::optional<pid_t> inspected;    ///< a running process to ask instead; nothing is started then
};

/// Empty when only help or the version was asked for, which then went to `out`.
/// Errors: ConfigError in one line for a flag that is unknown, malformed or contradicts another, or no program.
std::optional<Options> parse_options(int argc, const char* const* argv, std::ostream& out);

}  // namespace ddp::launch
