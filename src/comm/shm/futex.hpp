#pragma once
/// futex.hpp: the kernel's wait and wake on a word in memory that processes share. std::atomic's own wait does not
/// cross processes.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace ddp::comm::shm {

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "a futex is a plain 32-bit word");

/// Sleeps while `word` is `seen`, at most `limit`. May return early.
inline void futex_wait(Word& word, std::uint32_t seen, std::chrono::nanoseconds limit) noexcept {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const timespec time{static_cast<time_t>(limit.count() / kSecond), static_cast<long>(limit.count() % kSecond)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

/// Wakes all who sleep on `word`, in every process.
inline void futex_wake(Word& word) noexcept { ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace ddp::comm::shm
