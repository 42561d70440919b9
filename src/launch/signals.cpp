#include "launch/signals.hpp"

#include <sys/signalfd.h>

#include <cerrno>
#include <system_error>

namespace ddp::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Signals::Signals() {
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
  std::signal(SIGCHLD, SIG_DFL);  // a parent that ignored it would have our children vanish unseen
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  for (const int signal : kPassedOn) {
    if (!is_ignored(signal)) sigaddset(&wanted, signal);
  }
  ::sigprocmask(SIG_BLOCK, &wanted, &mask_before_);
  queue_ = Descriptor(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (queue_.get() < 0) throw std::system_error(errno, std::generic_category(), "signalfd");
}

std::optional<int> Signals::next() {
  signalfd_siginfo info;
  if (::read(queue_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void Signals::restore() const {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

}  // namespace ddp::launch
