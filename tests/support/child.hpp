#pragma once
/// child.hpp: a process that a test forks. Knows no torch.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <stdexcept>

namespace ddp::testing {

/// A forked child that runs `body` and then waits to be killed; it does not outlive this, nor its parent. The
/// constructor returns once `body` has. Errors: std::runtime_error where it has not.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        body();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
      if (::write(ends[1], "x", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char token = 0;
    const bool is_ready = ::read(ends[0], &token, 1) == 1;
    ::close(ends[0]);
    if (!is_ready) throw std::runtime_error("a child could not do what it is for");
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace ddp::testing
