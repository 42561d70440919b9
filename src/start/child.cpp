#include "start/child.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

namespace ddp::start {
namespace {

constexpr int kEndOfAKilledOneMs = 10'000;                // only a process that is stuck in the kernel takes longer
constexpr auto kByDescriptor = static_cast<idtype_t>(3);  // P_PIDFD, which glibc names since 2.36

int status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return info.si_status << 8;
  return info.si_code == CLD_DUMPED ? info.si_status | WCOREFLAG : info.si_status;
}

}  // namespace

Child::Child(pid_t pid) : process_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  if (process_.get() >= 0) return;
  const int error = errno;
  ended_ = error == ESRCH;  // already, and somebody has taken its status
  if (ended_) return;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  throw std::system_error(error, std::generic_category(), "pidfd_open");
}

Child::~Child() {
  if (process_.get() < 0 || has_ended()) return;
  send(SIGKILL);
  if (is_over(kEndOfAKilledOneMs)) has_ended();
}

bool Child::has_ended() {
  if (ended_ || !is_over(0)) return ended_;
  siginfo_t info{};
  int result = 0;
  while ((result = ::waitid(kByDescriptor, static_cast<id_t>(process_.get()), &info, WEXITED | WNOHANG)) != 0 &&
         errno == EINTR) {
  }
  if (result == 0 && info.si_pid == 0) return false;
  if (result == 0) status_ = status_of(info);
  return ended_ = true;
}

void Child::send(int signal) const {
  if (process_.get() >= 0) ::syscall(SYS_pidfd_send_signal, process_.get(), signal, nullptr, 0);
}

bool Child::is_over(int timeout_ms) const {
  pollfd end{process_.get(), POLLIN, 0};
  int ready = 0;
  while ((ready = ::poll(&end, 1, timeout_ms)) < 0 && errno == EINTR) {
  }
  return ready > 0;
}

}  // namespace ddp::start
