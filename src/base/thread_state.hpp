#pragma once
/// thread_state.hpp: what keeps a thread, of this process or of another one, from going on.
///
///     described(hindrance_of(thread))  // "waits for a core (82 % of the time)", "is stopped (SIGSTOP or Ctrl-Z)"

#include <chrono>
#include <span>
#include <string>

#include "base/thread_sample.hpp"

namespace ddp {

enum class Hindrance {
  unknown,       // it exists, but /proc does not show it
  running,       // none: it computes, perhaps without end
  sleeping,      // waits for a lock, a message, a time
  disk_wait,     // waits and cannot be interrupted: a disk, a network's file system, a driver
  major_faults,  // its memory has to be read back from a disk, page by page
  starved,       // others have the core, or the cgroup's quota is used up
  stopped,
  frozen,  // its container or cgroup is paused
  traced,  // a debugger holds it
  ended,
};

/// It cannot go on until somebody outside of the program lets it.
constexpr bool is_held(Hindrance hindrance) {
  return hindrance == Hindrance::stopped || hindrance == Hindrance::frozen || hindrance == Hindrance::traced;
}

/// Shares are of the time looked at, 0 to 1.
struct ThreadState {
  Hindrance hindrance = Hindrance::unknown;
  double on_core = 0;
  double without_core = 0;  // ready to run
  double major_faults_per_second = 0;
  double waits_per_second = 0;
  bool disk_seen = false;  // the kernel has counted a disk's time
  pid_t tracer = 0;
  std::string waits_in{};  // system call or kernel function, where this process may see it
};

/// Looks at the thread again and again for that long, and sleeps meanwhile.
ThreadState hindrance_of(const ThreadId& thread, std::chrono::milliseconds time = std::chrono::milliseconds(100));

/// A phrase to follow the thread's name.
std::string described(const ThreadState& state);

/// What hindrance_of() makes of what it has seen: samples of one thread in the order of their times.
ThreadState judge(std::span<const ThreadSample> samples);

}  // namespace ddp
