#pragma once
/// log.hpp: lines on standard error with time, level and rank. Rank 0 speaks unless others are asked.

#include <fmt/base.h>

#include <string>
#include <string_view>

namespace ddp::log {

enum class Level { debug, info, warn, error };
/// Parts of the library that speak only when DDP_LOG_SUBSYS names them (or "all").
enum class Subsystem { init, coll, bucket };

/// Who this process is; set by init_process_group(). Before that every process speaks as rank 0 of 1.
struct Identity {
  int rank = 0;
  int world_size = 1;
  std::string host = {};  ///< shown when not empty: set where the job spans several hosts
};
void set_identity(Identity identity);

/// A line of this level would be shown by this rank.
bool enabled(Level level, int speaking_rank);
bool enabled(Subsystem subsystem);

/// Formats and writes one line, flushed. Threads: safe; lines never interleave.
void write(Level level, fmt::string_view format, fmt::format_args arguments);
void write(Subsystem subsystem, fmt::string_view format, fmt::format_args arguments);

/// The ranks that speak.
class Audience {
 public:
  static constexpr int every_rank = -1;
  constexpr explicit Audience(int rank) : rank_(rank) {}

  template <class... T>
  void debug(fmt::format_string<T...> format, T&&... values) const { say(Level::debug, format, values...); }
  template <class... T>
  void info(fmt::format_string<T...> format, T&&... values) const { say(Level::info, format, values...); }
  template <class... T>
  void warn(fmt::format_string<T...> format, T&&... values) const { say(Level::warn, format, values...); }
  template <class... T>
  void error(fmt::format_string<T...> format, T&&... values) const { say(Level::error, format, values...); }

 private:
  void say(Level level, fmt::string_view format, auto&... values) const {
    if (enabled(level, rank_)) write(level, format, fmt::make_format_args(values...));
  }
  int rank_;
};

inline constexpr Audience all{Audience::every_rank};        ///< log::all.info(...): every rank
constexpr Audience only(int rank) { return Audience(rank); }  ///< log::only(2).info(...): that rank

template <class... T>
void debug(fmt::format_string<T...> format, T&&... values) { only(0).debug(format, std::forward<T>(values)...); }
template <class... T>
void info(fmt::format_string<T...> format, T&&... values) { only(0).info(format, std::forward<T>(values)...); }
template <class... T>
void warn(fmt::format_string<T...> format, T&&... values) { only(0).warn(format, std::forward<T>(values)...); }
template <class... T>
void error(fmt::format_string<T...> format, T&&... values) { only(0).error(format, std::forward<T>(values)...); }

/// A line of one of the library's parts, by every rank that shows it.
template <class... T>
void detail(Subsystem subsystem, fmt::format_string<T...> format, T&&... values) {
  if (enabled(subsystem)) write(subsystem, format, fmt::make_format_args(values...));
}

}  // namespace ddp::log
