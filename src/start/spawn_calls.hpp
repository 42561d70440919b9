#pragma once
/// spawn_calls.hpp: tells a program's calls of spawn() apart, so that a process that runs main() anew finds its own.

#include <cstdint>
#include <map>
#include <mutex>
#include <source_location>
#include <vector>

namespace ddp::start {

/// A line of the program, the same in each process of it.
std::uint64_t place_of(const std::source_location& location);

/// How a call ended, so that it can do so again in another process.
struct SpawnPast {
  enum class How { returned, rank_failed, not_started };
  How how = How::not_started;
  int rank = 0, exit_code = -1, signal = 0;  ///< of the rank that failed
};
/// For each place its calls that have ended, in their order.
using SpawnPasts = std::map<std::uint64_t, std::vector<SpawnPast>>;

/// The calls of one process. Threads: safe.
class SpawnCalls {
 public:
  /// Its number among the calls from `place`, from 1; 0 where another thread is in a call from there.
  int begin(std::uint64_t place);
  void end(std::uint64_t place, const SpawnPast& how);
  SpawnPasts ended() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, int> begun_;
  SpawnPasts ended_;
};

}  // namespace ddp::start
