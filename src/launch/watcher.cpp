#include "launch/watcher.hpp"

#include <fcntl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <set>
#include <system_error>

#include "start/descriptors.hpp"

namespace ddp::launch {
namespace {

[[noreturn]] void watch(Descriptor pipe) {
  ::setsid();
  sigset_t every;
  sigfillset(&every);
  ::sigprocmask(SIG_BLOCK, &every, nullptr);
  // Holding the launcher's output or its sockets open would make others wait for this process.
  ::dup2(pipe.get(), STDIN_FILENO);
  start::redirect_to_null(STDOUT_FILENO);
  start::redirect_to_null(STDERR_FILENO);
  start::close_others({});

  std::set<pid_t> groups;
  pid_t record = 0;  // positive: a group; negative: one that is gone. Writes this small are never torn.
  for (;;) {
    const ssize_t size = ::read(STDIN_FILENO, &record, sizeof record);
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof record) break;
    if (record > 0) groups.insert(record);
    if (record < 0) groups.erase(-record);
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  ::_exit(0);
}

void send(int pipe, pid_t record) {
  while (::write(pipe, &record, sizeof record) < 0 && errno == EINTR) {
  }
}

}  // namespace

Watcher::Watcher() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  Descriptor read_end(ends[0]);
  pipe_ = Descriptor(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "cannot start the watcher");
  if (pid_ == 0) {
    pipe_.close();
    watch(std::move(read_end));
  }
}

Watcher::~Watcher() {
  pipe_.close();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Watcher::add(pid_t group) { send(pipe_.get(), group); }
void Watcher::forget(pid_t group) { send(pipe_.get(), -group); }

}  // namespace ddp::launch
