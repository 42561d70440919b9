#pragma once
/// log_settings.hpp: what DDP_LOG_LEVEL and DDP_LOG_SUBSYS ask for.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ddp/log_level.hpp"

namespace ddp::log {

struct Settings {
  std::optional<Level> least = Level::info;  ///< empty: off, nothing is shown
  std::array<bool, 3> subsystems{};          ///< indexed by Subsystem
  std::vector<std::string> complaints;       ///< one sentence for each value that was ignored

  bool shows(Level level) const { return least && level >= *least; }
  bool shows(Subsystem subsystem) const { return least && subsystems[static_cast<std::size_t>(subsystem)]; }
};

/// The variables' values; null where a variable is not set.
Settings parse_settings(const char* level, const char* subsystems);

const char* name_of(Level level);
const char* name_of(Subsystem subsystem);

}  // namespace ddp::log
