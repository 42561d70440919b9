#include "base/thread_number.hpp"

#include <pthread.h>
#include <unistd.h>

namespace ddp {
namespace {

thread_local pid_t number = 0;

void forget() { number = 0; }

// The thread that forks is another one in the child.
void forget_in_children() { [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, forget); }

}  // namespace

pid_t own_thread_number() noexcept {
  if (number == 0) {
    forget_in_children();
    number = ::gettid();
  }
  return number;
}

}  // namespace ddp
