#include "base/thread_report.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/text.hpp"

namespace ddp {
namespace {

using testing::contains;

/// A thread that waits in a function of the test's; not in read(), for which ThreadSanitizer keeps signals back.
class Waiting {
 public:
  explicit Waiting(const char* name) {
    if (::pipe(ends_) != 0) throw std::runtime_error("pipe");
    thread_ = std::thread([this, name] {
      ::pthread_setname_np(::pthread_self(), name);
      number_ = ::gettid();
      wait_in_a_function_of_the_test(ends_[0]);
    });
    while (number_ == 0) std::this_thread::yield();
  }
  ~Waiting() {
    ::close(ends_[1]);
    thread_.join();
    ::close(ends_[0]);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  pid_t number() const { return number_; }

 private:
  __attribute__((noinline)) static void wait_in_a_function_of_the_test(int end) {
    pollfd hang_up{end, POLLIN, 0};
    while (::poll(&hang_up, 1, -1) < 0) {
    }
  }

  int ends_[2]{};
  std::atomic<pid_t> number_{0};
  std::thread thread_;
};

std::optional<ThreadReport> report_of(pid_t thread) {
  for (auto& report : thread_reports())
    if (report.thread == thread) return report;
  return std::nullopt;
}

std::string text_of(const ThreadStack& stack) {
  std::string text = stack.missing;
  for (const auto& frame : stack.frames) text += frame + '\n';
  return text;
}

TEST(ThreadReport, BeginsWithTheMainThreadAndSaysWhatTheOthersDoAndWhere) {
  const Waiting loader("loader");
  const auto reports = thread_reports();
  ASSERT_GE(reports.size(), 2U);
  EXPECT_EQ(reports[0].thread, ::getpid());
  EXPECT_EQ(reports[0].state, "makes this report");
  const auto found = std::ranges::find(reports, loader.number(), &ThreadReport::thread);
  ASSERT_NE(found, reports.end());
  EXPECT_EQ(found->name, "loader");
  EXPECT_TRUE(contains(found->state, "sleeps"));
  EXPECT_TRUE(contains(text_of(found->stack), "wait_in_a_function_of_the_test"));
}

TEST(ThreadReport, LeavesOutTheLibrarysOwnThreads) {
  const Waiting own("ddp-dump");
  EXPECT_FALSE(report_of(own.number()));
}

}  // namespace
}  // namespace ddp
