#pragma once
/// shm_child.hpp: a forked process that a test talks with, so that neither has to wait for a time to pass.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include "comm/watch_socket.hpp"

namespace ddp::comm::shm::testing {

inline constexpr std::chrono::milliseconds kLimit{10000};  // for what takes milliseconds

/// One end of a line that carries texts.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}

  void say(std::string_view text) {
    EXPECT_EQ(::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  /// The next text; "nothing" where the other end is gone or too slow.
  std::string hear() {
    pollfd entry{fd_.get(), POLLIN, 0};
    watch::poll_until({&entry, 1}, watch::Clock::now() + kLimit);
    std::array<char, 4096> text;
    const ssize_t length = entry.revents == 0 ? 0 : ::recv(fd_.get(), text.data(), text.size(), 0);
    return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : "nothing";
  }
  void close() { fd_.close(); }

 private:
  watch::Descriptor fd_;
};

class Child {
 public:
  /// Runs `body` in a fork of this process; an exception's text is said as its last word.
  explicit Child(const std::function<void(Line&)>& body) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
      throw std::runtime_error("socketpair");
    line_ = Line(ends[0]);
    Line other(ends[1]);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ != 0) return;
    line_.close();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(2);
    try {
      body(other);
    } catch (const std::exception& error) {
      other.say(error.what());
      ::_exit(1);
    }
    ::_exit(::testing::Test::HasFailure() ? 3 : 0);
  }
  ~Child() {
    kill();
    status();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Line* operator->() { return &line_; }
  pid_t pid() const { return pid_; }
  void kill() const {
    if (!reaped_) ::kill(pid_, SIGKILL);
  }
  /// As waitpid() tells it: 0 after a body without an exception or a failed expectation.
  int status() {
    if (!reaped_) ::waitpid(pid_, &status_, 0);
    reaped_ = true;
    return status_;
  }

 private:
  Line line_{-1};
  pid_t pid_ = -1;
  int status_ = 0;
  bool reaped_ = false;
};

}  // namespace ddp::comm::shm::testing
