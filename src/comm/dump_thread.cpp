#include "comm/dump_thread.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/blocked_signals.hpp"
#include "base/thread_stack.hpp"
#include "comm/flight_dump.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

// What a handler knows is global. The descriptor is never closed, for a handler may be about to write to it; a child of
// fork() shares it with its parent and so takes another one.
constinit std::atomic<int> bell{-1};
constinit std::atomic<pid_t> listening{0};  // the process whose thread waits at it
constinit std::atomic<bool> is_signalled{false}, is_to_end{false};

// Never destroyed: a child of fork() has a copy of the thread's object and no thread.
struct State {
  std::thread thread;
  std::mutex mutex;
  std::deque<std::function<void()>> jobs;
};

std::atomic<State*>& state() {
  static std::atomic<State*> one{nullptr};
  return one;
}

void ring() noexcept {
  const std::uint64_t one = 1;
  while (::write(bell, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void on_signal(int /*number*/) {
  const int saved = errno;
  if (listening == ::getpid()) {
    is_signalled = true;
    ring();
  }
  errno = saved;
}

void take_signal() {
  struct sigaction action{};
  if (::sigaction(SIGUSR2, nullptr, &action) != 0) return;
  if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL) return;
  action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, nullptr);
}

void hang_the_bell() {
  const int fd = ::eventfd(0, EFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  bell = fd;
}

void dump_for_signal() {
  if (const auto path = dump_or_warn({"SIGUSR2"}); !path.empty())
    log::all.info("SIGUSR2: this rank's calls are in {}", path);
}

std::function<void()> next_job(State& own) {
  const std::lock_guard lock(own.mutex);
  if (own.jobs.empty()) return {};
  auto job = std::move(own.jobs.front());
  own.jobs.pop_front();
  return job;
}

void run(State& own) noexcept {
  ::pthread_setname_np(::pthread_self(), "ddp-dump");
  for (std::uint64_t rung = 0; !is_to_end;) {
    if (::read(bell, &rung, sizeof rung) < 0 && errno != EINTR) return;
    if (is_signalled.exchange(false)) dump_for_signal();
    for (auto job = next_job(own); job && !is_to_end; job = next_job(own)) job();
  }
}

}  // namespace

void start_dump_thread(bool takes_signal) noexcept {
  if (listening == ::getpid()) return;
  try {
    hang_the_bell();
    is_to_end = false;
    prepare_thread_stacks();
    auto* const own = new State;
    state() = own;
    const BlockedSignals blocked;
    own->thread = std::thread([own] { run(*own); });
    listening = ::getpid();
    if (takes_signal) take_signal();
  } catch (const std::exception& error) {
    log::all.warn("no dumps of this rank's calls at time-outs and on SIGUSR2: {}", error.what());
  }
}

bool ask_dump_thread(std::function<void()> job) {
  if (listening != ::getpid()) return false;
  auto& own = *state().load();
  {
    const std::lock_guard lock(own.mutex);
    own.jobs.push_back(std::move(job));
  }
  ring();
  return true;
}

void end_dump_thread() noexcept {
  if (listening != ::getpid()) return;
  listening = 0;
  is_to_end = true;
  ring();
  state().load()->thread.join();
}

}  // namespace ddp::comm
