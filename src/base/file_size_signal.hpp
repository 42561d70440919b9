#pragma once
/// file_size_signal.hpp: a call that meets the file-size limit fails with EFBIG and nothing else.

#include <pthread.h>
#include <signal.h>

namespace ddp {

/// While it lives, SIGXFSZ does not reach this thread; one that came meanwhile is consumed.
/// Lifetime: ends on the thread that made it.
class FileSizeSignalHeld {
 public:
  FileSizeSignalHeld() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    pending_before_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalHeld() {
    const timespec now{};
    if (!pending_before_) sigtimedwait(&signal_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalHeld(const FileSizeSignalHeld&) = delete;
  FileSizeSignalHeld& operator=(const FileSizeSignalHeld&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool pending_before_ = false;
};

}  // namespace ddp
