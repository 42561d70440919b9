#include "comm/dump_thread.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "base/blocked_signals.hpp"
#include "base/thread_stack.hpp"
#include "comm/failure_dump.hpp"
#include "comm/flight_dump.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

// What a handler knows is global. The descriptor is never closed, for a handler may be about to write to it; a child of
// fork() shares it with its parent and so takes another one.
constinit std::atomic<int> bell{-1};
constinit std::atomic<pid_t> listening{0};  // the process whose thread waits at it
constinit std::atomic<bool> is_signalled{false}, is_to_end{false};

struct Heard {
  Breakage breakage;
  Origin origin;
};

struct Mail {
  std::mutex mutex;
  std::optional<Heard> heard;  // the first that nobody has looked at yet
};

Mail& mail() {
  static auto* const one = new Mail;
  return *one;
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

void dump_for_failure() {
  std::optional<Heard> heard;
  {
    const std::lock_guard lock(mail().mutex);
    heard = std::exchange(mail().heard, std::nullopt);
  }
  if (heard) dump_at_failure(heard->breakage, heard->origin, "process group");
}

}  // namespace

DumpThread::DumpThread(bool takes_signal) noexcept : process_(::getpid()) {
  static std::atomic<pid_t> has_bell{0};
  try {
    if (has_bell != process_) hang_the_bell();
    has_bell = process_;
    is_to_end = false;
    prepare_thread_stacks();
    const BlockedSignals blocked;
    thread_ = std::make_unique<std::thread>([this] { run(); });
    listening = process_;
    if (takes_signal) take_signal();
  } catch (const std::exception& error) {
    trouble_ = error.what();
  }
}

DumpThread::~DumpThread() {
  if (!thread_) return;
  if (!is_of_this_process()) {
    // It stands for a thread of the parent: neither to be joined nor detached.
    [[maybe_unused]] const auto* const kept = thread_.release();
    return;
  }
  listening = 0;
  is_to_end = true;
  ring();
  thread_->join();
}

bool DumpThread::is_of_this_process() const { return ::getpid() == process_; }

void DumpThread::ask(const Breakage& breakage, Origin origin) noexcept {
  if (listening != ::getpid()) return;
  try {
    const std::lock_guard lock(mail().mutex);
    if (!mail().heard) mail().heard = {breakage, origin};
    ring();
  } catch (const std::exception&) {  // no memory for the text
  }
}

void DumpThread::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "ddp-dump");
  for (std::uint64_t rung = 0; !is_to_end;) {
    if (::read(bell, &rung, sizeof rung) < 0 && errno != EINTR) return;
    if (is_signalled.exchange(false)) dump_for_signal();
    dump_for_failure();
  }
}

}  // namespace ddp::comm
