#include "launch/start_rank.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include "ddp/error.hpp"
#include "launch/descriptors.hpp"
#include "launch/signals.hpp"
#include "launch/watcher.hpp"

namespace ddp::launch {
namespace {

constexpr int kNotStarted = 127;

std::vector<char*> pointers_of(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const auto& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void become_rank(const RankStart& start, pid_t launcher, const Signals& signals, Watcher& watcher,
                              int report) {
  ::setpgid(0, 0);
  watcher.add(::getpid());
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(kNotStarted);  // it died before it was asked for
  if (::isatty(STDIN_FILENO)) redirect_to_null(STDIN_FILENO);
  close_on_exec_from(STDERR_FILENO + 1);
  if (start.kept_descriptor >= 0) keep_over_exec(start.kept_descriptor);
  const auto arguments = pointers_of(start.arguments);
  const auto environment = pointers_of(start.environment);
  signals.restore();
  ::execve(start.program.c_str(), arguments.data(), environment.data());
  const int reason = errno;
  [[maybe_unused]] const ssize_t told = ::write(report, &reason, sizeof reason);
  ::_exit(kNotStarted);
}

/// 0 once the program runs (the pipe closes on exec), else why it does not.
int await_exec(int pipe) {
  int reason = 0;
  ssize_t size;
  while ((size = ::read(pipe, &reason, sizeof reason)) < 0 && errno == EINTR) {
  }
  return size == sizeof reason ? reason : 0;
}

const char* remedy_for(int reason) {
  if (reason == ENOEXEC) return "a script needs a first line such as #!/bin/sh";
  if (reason == ENOENT) return "the interpreter that its first line or its header names is missing";
  return "";
}

}  // namespace

pid_t start_rank(const RankStart& start, const Signals& signals, Watcher& watcher) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "cannot start another process");
  if (pid == 0) become_rank(start, launcher, signals, watcher, write_end.get());
  ::setpgid(pid, pid);  // whoever is first: from here on the group can be signalled
  write_end.close();
  const int reason = await_exec(read_end.get());
  if (reason == 0) return pid;
  ::waitpid(pid, nullptr, 0);
  watcher.forget(pid);
  throw ConfigError({}, "ddprun", "the system cannot run " + start.program + ": " + std::strerror(reason),
                    remedy_for(reason));
}

}  // namespace ddp::launch
