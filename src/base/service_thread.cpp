#include "base/service_thread.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>
#include <utility>

namespace ddp {
namespace {

Descriptor event() {
  Descriptor made(::eventfd(0, EFD_CLOEXEC));
  if (made.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return made;
}

/// The program's handlers run on the program's threads.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, fault);
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

ServiceThread::ServiceThread(const char* name, std::function<void(int)> body) : process_(::getpid()), stop_(event()) {
  const BlockedSignals blocked;
  thread_ = std::make_unique<std::thread>([name, body = std::move(body), stop = stop_.get()]() noexcept {
    ::pthread_setname_np(::pthread_self(), name);
    body(stop);
  });
}

ServiceThread::~ServiceThread() {
  if (!is_of_this_process()) {
    // It stands for a thread of the parent: neither to be joined nor detached.
    [[maybe_unused]] const auto* const kept = thread_.release();
    return;
  }
  const std::uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_->join();
}

bool ServiceThread::is_of_this_process() const { return ::getpid() == process_; }

}  // namespace ddp
