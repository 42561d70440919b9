// The one file that makes text from format strings, with the fmt that LibTorch ships.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <exception>

#include "base/formatted.hpp"
#include "base/log_speaker.hpp"
#include "ddp/log.hpp"

namespace ddp {

std::string vformatted(fmt::string_view format, fmt::format_args arguments) { return fmt::vformat(format, arguments); }

}  // namespace ddp

namespace ddp::log {
namespace {

void put_formatted(Level level, Places places, std::string_view part, fmt::string_view format,
                   fmt::format_args arguments) {
  fmt::memory_buffer text;
  text.append(part);
  const auto failed = [&](const char* why) {
    put(Level::error, fmt::format("log: the message \"{}\" could not be formatted: {}", format, why), places);
  };
  try {
    fmt::vformat_to(fmt::appender(text), format, arguments);
  } catch (const std::exception& error) {
    return failed(error.what());
  } catch (...) {
    return failed("its formatter threw something that is no std::exception");
  }
  put(level, {text.data(), text.size()}, places);
}

}  // namespace

void write(Level level, int speaking_rank, fmt::string_view format, fmt::format_args arguments) noexcept {
  put_formatted(level, places_for(speaking_rank), "", format, arguments);
}

void write(Subsystem subsystem, fmt::string_view format, fmt::format_args arguments) noexcept {
  put_formatted(Level::debug, places_for(Audience::every_rank), std::string(name_of(subsystem)) + ": ", format,
                arguments);
}

}  // namespace ddp::log
