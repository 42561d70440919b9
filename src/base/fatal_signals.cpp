#include "base/fatal_signals.hpp"

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <iterator>
#include <mutex>

namespace ddp {
namespace {

constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr pid_t kNobody = 0, kDone = -1;
// For another thread's report: longer than a disk needs for some megabytes. Its process ends then anyway.
constexpr int kLooks = 1000;
constexpr long kLookNanoseconds = 10'000'000;

/// A handler knows nothing but what is global. Set before the first handler is.
constinit FatalReport reporter = nullptr;
constinit std::array<struct sigaction, kSignals.size()> before{};
constinit std::atomic<pid_t> reporting{kNobody};  // the thread
constinit std::atomic<int> reported{0};           // the signal

struct sigaction& before_of(int number) {
  return before[static_cast<std::size_t>(std::distance(kSignals.begin(), std::ranges::find(kSignals, number)))];
}

/// The instruction that has failed fails again. Nothing else does: a signal that was sent, abort(), a broken memory
/// that the kernel tells of in advance.
bool comes_again(const siginfo_t& signal) {
  const bool is_in_advance = signal.si_signo == SIGBUS && signal.si_code == BUS_MCEERR_AO;
  return signal.si_signo != SIGABRT && signal.si_code > 0 && !is_in_advance;
}

/// The signal comes once more, as if it had not come yet, as soon as this handler returns.
void hand_over(int number, siginfo_t* signal) {
  ::sigaction(number, &before_of(number), nullptr);
  if (comes_again(*signal)) return;
  if (::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), number, signal) != 0) ::raise(number);
}

void end_by(int number) {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  ::sigaction(number, &action, nullptr);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(number);
}

void wait_for_report() {
  for (int i = 0; i < kLooks && reporting != kDone; ++i) {
    const timespec pause{0, kLookNanoseconds};
    ::nanosleep(&pause, nullptr);
  }
}

void on_fatal_signal(int number, siginfo_t* signal, void* /*context*/) {
  const int saved = errno;
  const pid_t self = ::gettid();
  pid_t other = kNobody;
  if (reporting.compare_exchange_strong(other, self)) {
    reported = number;
    reporter(*signal);
    reporting = kDone;
  } else if (other == self) {
    end_by(reported);
  } else if (other != kDone) {
    wait_for_report();
  }
  hand_over(number, signal);
  errno = saved;
}

void install(int number) {
  auto& previous = before_of(number);
  if (::sigaction(number, nullptr, &previous) != 0) return;
  if ((previous.sa_flags & SA_SIGINFO) == 0 && previous.sa_handler == SIG_IGN) return;
  struct sigaction action{};
  action.sa_sigaction = on_fatal_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);  // no handler of the program's runs in the middle, but for a fault of the report itself
  for (const int fault : kSignals) sigdelset(&action.sa_mask, fault);
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void report_fatal_signals(FatalReport report) noexcept {
  static std::once_flag once;
  std::call_once(once, [&] {
    reporter = report;
    for (const int number : kSignals) install(number);
  });
}

}  // namespace ddp
