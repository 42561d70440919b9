#pragma once
/// log.hpp: lines on standard error with time, level and rank. Rank 0 speaks unless others are asked.
///
///   2026-11-29T17:40:01.123Z info rank 0: epoch 3 loss 0.4127
///
/// DDP_LOG_LEVEL=debug|info|warn|error|off is the least level shown (info by default), and
/// DDP_LOG_SUBSYS=init,coll,bucket or all lets parts of the library tell what they do, on every rank.
/// Both are read once. DDP_LOG_FILE=path is to_file(path) from init_process_group() on; a file that cannot be opened
/// is a warning there. Format strings follow std::format's rules and are checked at compile time.

#include <fmt/base.h>

#include <cstdint>
#include <source_location>
#include <string>
#include <utility>

#include "ddp/log_level.hpp"

namespace ddp::log {

/// Called by init_process_group(). Before that every process speaks as rank 0 of 1.
/// Threads: safe.
void set_identity(const Identity& identity);

/// Appends from now on what this rank shows on standard error to a file as well. A plain path ("run.log") is a file of
/// rank 0: on other ranks the call does nothing, so it needs no check of the rank. With "{rank}" in it
/// ("logs/rank{rank}.log") each rank has a file, which also gets this rank's lines of log::info() and its like, of
/// which the console shows rank 0's alone. Missing folders are made. A later call puts another file in its place.
/// Lines of several jobs in one file stay whole, too (on NFS only those from one host).
///
/// Once the file can be written no longer (disk full), a line on standard error says so, and the program goes on.
///
/// Threads: safe. Errors: std::logic_error before init_process_group(), as the rank is not known; ConfigError where the
/// file cannot be opened, and what was written to before stays in use.
void to_file(const std::string& path);

/// A line of this level, meant for `speaking_rank` (or Audience::every_rank), would be shown by this process or go to
/// its file.
bool enabled(Level level, int speaking_rank);
bool enabled(Subsystem subsystem);

/// Formats and writes one message. Each of its lines gets the prefix and is one write(2) of at most PIPE_BUF
/// bytes, so that lines never interleave, also between processes; a longer line goes on in the next one, after "... ".
///
/// Threads: safe. Errors: none; a formatter that throws gives a line of level error instead of the message.
void write(Level level, int speaking_rank, fmt::string_view format, fmt::format_args arguments) noexcept;
void write(Subsystem subsystem, fmt::string_view format, fmt::format_args arguments) noexcept;

/// The ranks that speak.
class Audience {
 public:
  static constexpr int every_rank = -1;
  static constexpr int no_rank = -2;
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
    if (enabled(level, rank_)) write(level, rank_, format, fmt::make_format_args(values...));
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

/// What every() returns: true where it is this call's turn, and then it speaks on rank 0.
class Every : public Audience {
 public:
  constexpr explicit Every(bool turn) : Audience(turn ? 0 : no_rank), turn_(turn) {}
  constexpr explicit operator bool() const { return turn_; }

 private:
  bool turn_;
};

/// The 1st call at a place in the source (line and column; a macro's arguments are one place), and each `calls`-th one
/// after it, has its turn:
///
///   if (log::every(50)) log::info("step {} loss {:.4f}", step, ddp::mean(loss, *group));
///   log::every(50).info("step {}", step);
///
/// Calls count alike on all ranks, whatever the rank and DDP_LOG_LEVEL, so that a collective inside the `if` is safe
/// where all ranks come by equally often; the arguments of the second form are computed in each call.
///
/// Threads: safe, with one count for all of them. Errors: std::invalid_argument if `calls` is less than 1.
[[nodiscard]] Every every(std::int64_t calls, std::source_location place = std::source_location::current());

/// A line of one of the library's parts, by every rank that shows it.
template <class... T>
void detail(Subsystem subsystem, fmt::format_string<T...> format, T&&... values) {
  if (enabled(subsystem)) write(subsystem, format.get(), fmt::make_format_args(values...));
}

}  // namespace ddp::log
