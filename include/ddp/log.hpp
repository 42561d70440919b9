#pragma once
/// log.hpp: lines on standard error with time, level and rank. Rank 0 speaks unless others are asked.
///
///   2026-11-29T17:40:01.123Z info rank 0: epoch 3 loss 0.4127
///
/// DDP_LOG_LEVEL=debug|info|warn|error|off is the least level shown (info by default), and
/// DDP_LOG_SUBSYS=init,coll,bucket or all lets parts of the library tell what they do, on every rank.
/// Both are read once. Format strings follow std::format's rules and are checked at compile time.

#include <fmt/base.h>

#include <utility>

#include "ddp/log_level.hpp"

namespace ddp::log {

/// Called by init_process_group(). Before that every process speaks as rank 0 of 1.
/// Threads: safe.
void set_identity(const Identity& identity);

/// A line of this level, meant for `speaking_rank` (or Audience::every_rank), would be shown by this process.
bool enabled(Level level, int speaking_rank);
bool enabled(Subsystem subsystem);

/// Formats and writes one message. Each of its lines gets the prefix and is one write(2) of at most PIPE_BUF
/// bytes, so that lines never interleave, also between processes; a longer line goes on in the next one, after "... ".
///
/// Threads: safe. Errors: none; a formatter that throws gives a line of level error instead of the message.
void write(Level level, fmt::string_view format, fmt::format_args arguments) noexcept;
void write(Subsystem subsystem, fmt::string_view format, fmt::format_args arguments) noexcept;

/// The ranks that speak.
class Audience {
 public:
  static constexpr int every_rank = -1;
  constexpr explicit Audience(int rank) : rank_(rank) {}

  template <class... T>
  void debug(fmt::format_string<T...> format, T&&... values) const {
    say(Level::debug, format.get(), values...);
  }
  template <class... T>
  void info(fmt::format_string<T...> format, T&&... values) const {
    say(Level::info, format.get(), values...);
  }
  template <class... T>
  void warn(fmt::format_string<T...> format, T&&... values) const {
    say(Level::warn, format.get(), values...);
  }
  template <class... T>
  void error(fmt::format_string<T...> format, T&&... values) const {
    say(Level::error, format.get(), values...);
  }

 private:
  void say(Level level, fmt::string_view format, auto&... values) const {
    if (enabled(level, rank_)) write(level, format, fmt::make_format_args(values...));
  }
  int rank_;
};

inline constexpr Audience all{Audience::every_rank};          ///< log::all.info(...): every rank
constexpr Audience only(int rank) { return Audience(rank); }  ///< log::only(2).info(...): that rank

template <class... T>
void debug(fmt::format_string<T...> format, T&&... values) {
  only(0).debug(format, std::forward<T>(values)...);
}
template <class... T>
void info(fmt::format_string<T...> format, T&&... values) {
  only(0).info(format, std::forward<T>(values)...);
}
template <class... T>
void warn(fmt::format_string<T...> format, T&&... values) {
  only(0).warn(format, std::forward<T>(values)...);
}
template <class... T>
void error(fmt::format_string<T...> format, T&&... values) {
  only(0).error(format, std::forward<T>(values)...);
}

/// A line of one of the library's parts, by every rank that shows it.
template <class... T>
void detail(Subsystem subsystem, fmt::format_string<T...> format, T&&... values) {
  if (enabled(subsystem)) write(subsystem, format.get(), fmt::make_format_args(values...));
}

}  // namespace ddp::log
