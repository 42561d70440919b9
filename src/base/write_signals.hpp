#pragma once
/// write_signals.hpp: a call that meets the limit of a file's size, or a pipe without a reader, fails with an errno and
/// nothing else.

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace ddp {

/// While it lives, SIGXFSZ and SIGPIPE do not reach this thread; what came meanwhile is consumed.
/// Lifetime: ends on the thread that made it. Leaves errno as it is.
class WriteSignalsHeld {
 public:
  WriteSignalsHeld() {
    sigset_t pending;
    ::sigpending(&pending);
    ::sigemptyset(&held_);
    ::sigemptyset(&own_);
    for (const int signal : {SIGXFSZ, SIGPIPE}) {
      ::sigaddset(&held_, signal);
      if (::sigismember(&pending, signal) == 0) ::sigaddset(&own_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~WriteSignalsHeld() {
    const int error = errno;
    const timespec now{};
    while (::sigtimedwait(&own_, nullptr, &now) > 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  WriteSignalsHeld(const WriteSignalsHeld&) = delete;
  WriteSignalsHeld& operator=(const WriteSignalsHeld&) = delete;

 private:
  sigset_t held_{};
  sigset_t own_{};  ///< of those, the ones that did not wait before
  sigset_t before_{};
};

}  // namespace ddp
