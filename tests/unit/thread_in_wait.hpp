#pragma once
/// thread_in_wait.hpp: threads and processes that a test brings into a certain state.

#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>

#include "base/thread_sample.hpp"

namespace ddp::waiting {

inline constexpr std::chrono::seconds kLimit{20};  // for what takes milliseconds

/// Looks again and again; false after kLimit.
inline bool comes_true(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + kLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Whether the kernel shows the thread in that state, soon.
inline bool comes_into(const ThreadId& thread, char state) {
  return comes_true([&] {
    const auto sample = sample_thread(thread);
    return sample && sample->state == state;
  });
}

/// A fork of this process; ends with it.
class Process {
 public:
  explicit Process(const std::function<void()>& body) {
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) body();
    ::_exit(0);
  }
  ~Process() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  ThreadId main_thread() const { return {pid_, pid_}; }

 private:
  pid_t pid_ = -1;
};

/// A thread that runs `body`, whose id is known at once; joined by the destructor.
class Thread {
 public:
  explicit Thread(const std::function<void()>& body)
      : thread_([this, body] {
          id_ = this_thread();
          known_.store(true, std::memory_order_release);
          known_.notify_one();
          body();
        }) {
    known_.wait(false, std::memory_order_acquire);
  }
  ~Thread() { join(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  const ThreadId& id() const { return id_; }
  /// Until the kernel has forgotten the thread too, which is a little later than pthread_join's return.
  void join() {
    if (!thread_.joinable()) return;
    thread_.join();
    EXPECT_TRUE(comes_true([this] { return !sample_thread(id_); }));
  }

 private:
  ThreadId id_;
  std::atomic<bool> known_ = false;
  std::thread thread_;
};

/// The body of a thread in state D, as one that waits for a disk, until end(): the kernel lets a thread wait so for its
/// vfork()ed child. By the bare call, since libraries may make a fork of it.
class UninterruptibleWait {
 public:
  void operator()() {
    const auto child = ::syscall(SYS_clone, CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, 0, &child_, 0, 0);
    if (child == 0) {
      ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
      for (;;) ::syscall(SYS_ppoll, nullptr, 0, nullptr, nullptr, 0);
    }
    if (child > 0) ::waitpid(static_cast<pid_t>(child), nullptr, 0);
  }
  void end() const {
    if (child_ > 0) ::kill(child_, SIGKILL);
  }

 private:
  pid_t child_ = 0;
};

/// Its readers wait until close_writer().
class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  ~Pipe() {
    close_writer();
    ::close(ends_[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int reader() const { return ends_[0]; }
  void close_writer() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

}  // namespace ddp::waiting
