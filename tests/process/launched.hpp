#pragma once
/// launched.hpp: a program under test, its output and its end, each waited for with a limit.

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddp::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Readable once the process has ended. Not bound to the number: never another process of the same number.
class ProcessHandle {
 public:
  explicit ProcessHandle(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
    if (fd_ < 0) throw std::runtime_error("no process " + std::to_string(pid));
  }
  ProcessHandle(ProcessHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~ProcessHandle() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool ends_by(Clock::time_point limit) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now());
    pollfd end{fd_, POLLIN, 0};
    return ::poll(&end, 1, std::max<int>(0, static_cast<int>(left.count()))) == 1;
  }
  void kill() const { ::syscall(SYS_pidfd_send_signal, fd_, SIGKILL, nullptr, 0); }

 private:
  int fd_;
};

/// Standard output and error go to one pipe. The destructor kills what still runs.
class Launched {
 public:
  explicit Launched(std::vector<std::string> words, const std::function<void()>& before_exec = [] {}) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      for (const int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTERM}) std::signal(signal, SIG_DFL);
      before_exec();
      std::vector<char*> argv;
      for (auto& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(99);
    }
    ::close(ends[1]);
    output_ = ends[0];
  }
  Launched(Launched&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), output_(std::exchange(other.output_, -1)), text_(std::move(other.text_)) {}
  ~Launched() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (output_ >= 0) ::close(output_);
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  /// Reads until the text has `word` `count` times. Errors: std::runtime_error with the text at the limit.
  const std::string& read_until(const std::string& word, int count, std::chrono::milliseconds limit = 20s) {
    read([&] { return occurrences(word) >= count; }, Clock::now() + limit);
    return text_;
  }
  /// Reads to the end, which comes when no process holds the pipe any more, then the exit status: the code, or -n for
  /// signal n.
  int finish(std::chrono::milliseconds limit = 20s) {
    read([] { return false; }, Clock::now() + limit);
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  const std::string& text() const { return text_; }

  int occurrences(const std::string& word) const {
    int count = 0;
    for (auto at = text_.find(word); at != std::string::npos; at = text_.find(word, at + 1)) ++count;
    return count;
  }

 private:
  void read(const std::function<bool()>& done, Clock::time_point limit) {
    char buffer[65536];
    while (!done()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now()).count();
      pollfd ready{output_, POLLIN, 0};
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) == 0) {
        throw std::runtime_error("not over within the limit; so far:\n" + text_);
      }
      const ssize_t size = ::read(output_, buffer, sizeof buffer);
      if (size <= 0) return;
      text_.append(buffer, static_cast<std::size_t>(size));
    }
  }

  pid_t pid_ = -1;
  int output_ = -1;
  std::string text_;
};

}  // namespace ddp::test
