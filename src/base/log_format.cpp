// The one file that makes text from format strings, with the fmt that LibTorch ships.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <exception>

#include "base/log_settings.hpp"
#include "base/log_sink.hpp"
#include "ddp/log.hpp"

namespace ddp::log {
namespace {

std::atomic<int>& own_rank() {
  static std::atomic<int> rank{0};
  return rank;
}

/// Read at the first use, which also reports what was ignored. Never destroyed: threads that outlive main() may speak.
const Settings& settings() {
  static const auto* const instance = [] {
    auto* read = new Settings(parse_settings(std::getenv("DDP_LOG_LEVEL"), std::getenv("DDP_LOG_SUBSYS")));
    if (own_rank() == 0 && read->shows(Level::warn)) {
      for (const auto& complaint : read->complaints) put(Level::warn, complaint);
    }
    return read;
  }();
  return *instance;
}

void put_formatted(Level level, std::string_view part, fmt::string_view format, fmt::format_args arguments) {
  fmt::memory_buffer text;
  text.append(part);
  const auto failed = [&](const char* why) {
    put(Level::error, fmt::format("log: the message \"{}\" could not be formatted: {}", format, why));
  };
  try {
    fmt::vformat_to(fmt::appender(text), format, arguments);
  } catch (const std::exception& error) {
    return failed(error.what());
  } catch (...) {
    return failed("its formatter threw something that is no std::exception");
  }
  put(level, {text.data(), text.size()});
}

}  // namespace

void set_identity(const Identity& identity) {
  own_rank() = identity.rank;
  name_speaker(identity);
  settings();
}

bool enabled(Level level, int speaking_rank) {
  return settings().shows(level) && (speaking_rank == Audience::every_rank || speaking_rank == own_rank());
}

bool enabled(Subsystem subsystem) { return settings().shows(subsystem); }

void write(Level level, fmt::string_view format, fmt::format_args arguments) noexcept {
  put_formatted(level, "", format, arguments);
}

void write(Subsystem subsystem, fmt::string_view format, fmt::format_args arguments) noexcept {
  put_formatted(Level::debug, std::string(name_of(subsystem)) + ": ", format, arguments);
}

}  // namespace ddp::log
