#include "base/stop_signals.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <stdexcept>
#include <string>

#include "base/stop_wish.hpp"

namespace ddp {
namespace {

/// A signal that a handler of ours is for.
struct Taken {
  struct sigaction before{};
  std::atomic<pid_t> owner{0};        // the process that asked for it, not a child's
  std::atomic<std::int64_t> came{0};  // first, by the clock's milliseconds; 0: not yet
};

/// A handler knows nothing but what is global.
constinit std::array<Taken, NSIG> taken{};  // by the signal's number
static_assert(NSIG <= kStopAgreedBefore);
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

// A terminal, a launcher and a wrapper such as timeout may each pass on one and the same Ctrl-C.
constexpr std::int64_t kSameMs = 1000;

std::int64_t milliseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000 + 1;
}

void on_stop_signal(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  auto& [before, owner, came] = taken[static_cast<std::size_t>(number)];
  const auto now = milliseconds_now();
  std::int64_t first = 0;
  const bool is_again = !came.compare_exchange_strong(first, now) && now - first > kSameMs;
  const bool is_wish = owner == ::getpid() && !(number == SIGINT && is_again);
  if (is_wish) want_to_stop(static_cast<StopReason>(number));
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL) {
    before.sa_handler(number);
  } else if (!is_wish) {  // it comes once more, to what was there before, as soon as this handler returns
    ::sigaction(number, &before, nullptr);
    ::raise(number);
  }
  errno = saved;
}

void require_takeable(int number) {
  struct sigaction action{};
  const auto faults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
  const bool is_takeable = number != SIGKILL && number != SIGSTOP &&
                           std::ranges::find(faults, number) == faults.end() &&
                           ::sigaction(number, nullptr, &action) == 0;
  if (!is_takeable) throw std::invalid_argument("ddp: a program cannot go on after signal " + std::to_string(number));
}

void take(int number) {
  auto& [before, owner, came] = taken[static_cast<std::size_t>(number)];
  struct sigaction now{};
  ::sigaction(number, nullptr, &now);
  const bool has_info = (now.sa_flags & SA_SIGINFO) != 0;
  if (owner == ::getpid() || (!has_info && now.sa_handler == SIG_IGN)) return;
  const bool is_inherited = has_info && now.sa_sigaction == on_stop_signal;
  if (!is_inherited) before = now;
  came = 0;
  owner = ::getpid();
  struct sigaction action{};
  action.sa_sigaction = on_stop_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  action.sa_mask = before.sa_mask;  // as the handler that was there before expects
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void want_to_stop_at(std::initializer_list<int> signals) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const int number : signals) require_takeable(number);
  for (const int number : signals) take(number);
}

}  // namespace ddp
