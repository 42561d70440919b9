#include "comm/dump_thread.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/service_thread.hpp"
#include "comm/flight_dump.hpp"
#include "comm/watch_socket.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

// What a handler knows is global. The descriptor is never closed, for a handler may be about to write to it; a child of
// fork() shares it with its parent and so takes another one.
constinit std::atomic<int> bell{-1};
constinit std::atomic<pid_t> listening{0};  // the process whose thread waits at it
constinit std::atomic<bool> is_signalled{false};

// Never destroyed: a child of fork() has a copy.
struct State {
  std::mutex mutex;
  std::deque<std::function<void()>> jobs;
  std::unique_ptr<ServiceThread> thread;  // last: it uses what stands above
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
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
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

void run(State& own, int stop) {
  const auto is_to_end = [stop] {
    pollfd end{stop, POLLIN, 0};
    return ::poll(&end, 1, 0) == 1;
  };
  while (!is_to_end()) {
    std::array<pollfd, 2> events{{{bell, POLLIN, 0}, {stop, POLLIN, 0}}};
    watch::poll_until(events, watch::Clock::time_point::max());
    std::uint64_t rung = 0;
    while (::read(bell, &rung, sizeof rung) > 0) {
    }
    if (is_signalled.exchange(false)) dump_for_signal();
    for (auto job = next_job(own); job && !is_to_end(); job = next_job(own)) job();
  }
}

}  // namespace

void start_dump_thread(bool takes_signal) noexcept {
  if (listening == ::getpid()) return;
  try {
    hang_the_bell();
    auto* const own = new State;
    state() = own;
    own->thread = std::make_unique<ServiceThread>("ddp-dump", [own](int stop) { run(*own, stop); });
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
  state().load()->thread.reset();
}

}  // namespace ddp::comm
