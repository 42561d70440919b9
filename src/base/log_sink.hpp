#pragma once
/// log_sink.hpp: puts finished text on standard error and into a file. Names neither spdlog nor fmt, of which LibTorch
/// and the system bring different versions that no file can see together.

#include <memory>
#include <string_view>

#include "base/log_file.hpp"
#include "ddp/log_level.hpp"

namespace ddp::log {

/// Where a message goes.
struct Places {
  bool console = false;
  bool file = false;

  bool any() const { return console || file; }
};

/// Threads: safe.
void name_speaker(const Identity& identity);

/// Takes the place of the former one; null: no file. Threads: safe.
void use_file(std::unique_ptr<LogFile> file);

/// Threads: safe. See log::write() for how text becomes lines; those in the file are those on the console.
void put(Level level, std::string_view text, Places places) noexcept;

}  // namespace ddp::log
