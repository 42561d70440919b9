#pragma once
/// spawn_ticket.hpp: tells a new process which rank of which call of spawn() it is.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "start/spawn_calls.hpp"

namespace ddp::start {

struct SpawnTicket {
  static constexpr const char* kVariable = "DDP_SPAWN";

  pid_t parent = 0;
  int local_rank = 0;
  int report = -1;          ///< descriptor of the pipe to the parent
  std::uint64_t place = 0;  ///< of the call, and its number there
  int number = 0;
  SpawnPasts ended = {};  ///< calls that were over

  /// The variable's value.
  std::string text() const;
  /// None where the text makes no sense.
  static std::optional<SpawnTicket> parse(const std::string& text);
  /// This process's own: none where the variable is not there, or was meant for the one that started this process.
  static std::optional<SpawnTicket> of_this_process();
};

}  // namespace ddp::start
