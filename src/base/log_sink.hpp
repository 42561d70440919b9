#pragma once
/// log_sink.hpp: puts finished text on standard error. Names neither spdlog nor fmt, of which LibTorch and
/// the system bring different versions that no file can see together.

#include <string_view>

#include "ddp/log_level.hpp"

namespace ddp::log {

/// Threads: safe.
void name_speaker(const Identity& identity);

/// Threads: safe. See log::write() for how text becomes lines.
void put(Level level, std::string_view text);

}  // namespace ddp::log
