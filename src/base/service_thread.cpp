#include "base/service_thread.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/blocked_signals.hpp"

namespace ddp {
namespace {

Descriptor event() {
  Descriptor made(::eventfd(0, EFD_CLOEXEC));
  if (made.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return made;
}

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
