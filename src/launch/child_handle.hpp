#pragma once
/// child_handle.hpp: a child process, by more than its number.

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

#include "base/descriptor.hpp"

namespace ddp::launch {

/// A number may be another process's once somebody has waited for the child; this never is.
class ChildHandle {
 public:
  ChildHandle() = default;
  /// Errors: std::system_error.
  explicit ChildHandle(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
    if (fd_.get() < 0) throw std::system_error(errno, std::generic_category(), "pidfd_open");
  }

  bool is_there() const { return fd_.get() >= 0; }
  void kill() const { ::syscall(SYS_pidfd_send_signal, fd_.get(), SIGKILL, nullptr, 0); }
  /// Returns once it has ended, also where somebody else has waited for it already.
  void await_end() const { ::waitid(P_PIDFD, static_cast<id_t>(fd_.get()), nullptr, WEXITED); }

 private:
  Descriptor fd_;
};

}  // namespace ddp::launch
