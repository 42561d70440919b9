#pragma once
/// spawn_calls.hpp: tells a program's calls of spawn() apart, so that a process that runs main() anew finds its own.

#include <cstdint>
#include <map>
#include <mutex>
#include <source_location>

namespace ddp::start {

/// A line of the program, the same in each process of it.
std::uint64_t place_of(const std::source_location& location);

/// The calls of one process. Threads: safe.
class SpawnCalls {
 public:
  /// Its number among the calls from `place`, from 1; 0 where another thread is in a call from there.
  int begin(std::uint64_t place);
  void end(std::uint64_t place);
  /// For each place how many calls have ended.
  std::map<std::uint64_t, int> ended() const;

 private:
  struct Count {
    int begun = 0, ended = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Count> counts_;
};

}  // namespace ddp::start
