#include "base/log_settings.hpp"

#include <algorithm>
#include <string_view>

namespace ddp::log {
namespace {

constexpr std::array kLevels{"debug", "info", "warn", "error"};
constexpr std::array kSubsystems{"init", "coll", "bucket"};

/// Position of `word` among `names`, or their number.
template <std::size_t N>
std::size_t index_of(const std::array<const char*, N>& names, std::string_view word) {
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), word) - names.begin());
}

void read_level(Settings& settings, std::string_view word) {
  if (word == "off") {
    settings.least.reset();
  } else if (const auto level = index_of(kLevels, word); level < kLevels.size()) {
    settings.least = static_cast<Level>(level);
  } else {
    settings.complaints.push_back("DDP_LOG_LEVEL=" + std::string(word) +
                                  " is ignored: it must be debug, info, warn, error or off");
  }
}

void read_subsystem(Settings& settings, std::string_view word) {
  if (word == "all") {
    settings.subsystems.fill(true);
  } else if (const auto subsystem = index_of(kSubsystems, word); subsystem < kSubsystems.size()) {
    settings.subsystems[subsystem] = true;
  } else if (!word.empty()) {
    settings.complaints.push_back("DDP_LOG_SUBSYS: \"" + std::string(word) +
                                  "\" is ignored: it must be init, coll, bucket or all, separated by commas");
  }
}

}  // namespace

Settings parse_settings(const char* level, const char* subsystems) {
  Settings settings;
  if (level && *level) read_level(settings, level);
  std::string_view rest = subsystems ? subsystems : "";
  while (!rest.empty()) {
    const auto comma = std::min(rest.find(','), rest.size());
    read_subsystem(settings, rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return settings;
}

const char* name_of(Level level) { return kLevels[static_cast<std::size_t>(level)]; }
const char* name_of(Subsystem subsystem) { return kSubsystems[static_cast<std::size_t>(subsystem)]; }

}  // namespace ddp::log
