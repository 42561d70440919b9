#include "start/start_rank.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include "ddp/error.hpp"
#include "start/descriptors.hpp"

namespace ddp::start {
namespace {

constexpr int kNotStarted = 127;

std::vector<char*> pointers_of(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const auto& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// All that the new process needs is there before it begins: it may not allocate, for another thread may have held
/// the lock of the heap.
struct Plan {
  explicit Plan(const RankStart& start)
      : arguments(pointers_of(start.arguments)), environment(pointers_of(start.environment)) {
    CPU_ZERO(&cores);
    for (const int core : start.cores) CPU_SET(core, &cores);
  }
  std::vector<char*> arguments, environment;
  cpu_set_t cores;
};

[[noreturn]] void become_rank(const RankStart& start, const Plan& plan, pid_t caller,
                              const std::function<void()>& in_child, int report) {
  if (start.own_group) ::setpgid(0, 0);
  in_child();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != caller) ::_exit(kNotStarted);  // it died before it was asked for
  if (start.input >= 0) {
    ::dup2(start.input, STDIN_FILENO);
  } else if (start.own_group && ::isatty(STDIN_FILENO)) {
    redirect_to_null(STDIN_FILENO);
  }
  if (start.output >= 0) ::dup2(start.output, STDOUT_FILENO);
  if (start.error >= 0) ::dup2(start.error, STDERR_FILENO);
  close_on_exec_from(STDERR_FILENO + 1);
  for (const int kept : start.kept_descriptors) keep_over_exec(kept);
  if (!start.cores.empty()) ::sched_setaffinity(0, sizeof plan.cores, &plan.cores);
  ::execve(start.program.c_str(), plan.arguments.data(), plan.environment.data());
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

pid_t start_rank(const RankStart& start, const std::function<void()>& in_child) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  const Plan plan(start);
  const pid_t caller = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "cannot start another process");
  if (pid == 0) become_rank(start, plan, caller, in_child, write_end.get());
  if (start.own_group) ::setpgid(pid, pid);  // whoever is first: from here on the group can be signalled
  write_end.close();
  const int reason = await_exec(read_end.get());
  if (reason == 0) return pid;
  ::waitpid(pid, nullptr, 0);
  throw ConfigError({}, start.part, "the system cannot run " + start.program + ": " + std::strerror(reason),
                    remedy_for(reason));
}

}  // namespace ddp::start
