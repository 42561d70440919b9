#pragma once
/// thread_sample.hpp: one look at what the kernel says of a thread. thread_state.hpp judges several of them.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ddp {

/// A thread on this host. `started`, in clock ticks after boot, tells it from a later one of the same numbers; 0: any.
struct ThreadId {
  pid_t process = 0;
  pid_t thread = 0;
  std::uint64_t started = 0;
};

ThreadId this_thread();

/// Counts and times are sums since the thread's start; what this kernel does not count stays 0.
struct ThreadSample {
  std::chrono::nanoseconds taken{};  // on the steady clock
  char state = '?';                  // as in proc(5): R, S, D, T, t, Z, X, I
  std::uint64_t started = 0;         // as ThreadId has it
  std::uint64_t major_faults = 0;
  std::uint64_t waits = 0;  // how often it has given its core away to wait for something
  std::chrono::nanoseconds on_core{}, waited_for_core{}, waited_for_disk{};
  pid_t tracer = 0;                                        // the process that debugs it
  std::uint64_t blocked_signals = 0, pending_signals = 0;  // signal n is bit n - 1
  std::string system_call{};      // "read of /data/train.bin", "futex"; empty: in none, or this process may not see it
  std::string kernel_function{};  // in which it waits; empty as above
};

/// Nothing where the thread is gone, another one has its numbers, or /proc does not show it.
/// Reads no file whose text needs a lock of the thread's memory, so that a thread that holds it does not block this
/// one.
std::optional<ThreadSample> sample_thread(const ThreadId& thread, const std::filesystem::path& proc = "/proc");

}  // namespace ddp
