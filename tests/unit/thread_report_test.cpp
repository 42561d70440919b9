#include "base/thread_report.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "support/text.hpp"

namespace ddp {
namespace {

using testing::contains;

__attribute__((noinline)) void wait_in_a_function_of_the_test(std::atomic<bool>& is_over) {
  is_over.wait(false);
  asm volatile("");  // no tail call
}

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
  std::atomic<bool> is_over{false};
  std::atomic<pid_t> number{0};
  std::thread other([&] {
    ::pthread_setname_np(::pthread_self(), "loader");
    number = ::gettid();
    wait_in_a_function_of_the_test(is_over);
  });
  while (number == 0) std::this_thread::yield();
  const auto reports = thread_reports();
  ASSERT_GE(reports.size(), 2U);
  EXPECT_EQ(reports[0].thread, ::getpid());
  EXPECT_EQ(reports[0].state, "makes this report");
  const auto found = std::ranges::find(reports, number.load(), &ThreadReport::thread);
  ASSERT_NE(found, reports.end());
  EXPECT_EQ(found->name, "loader");
  EXPECT_TRUE(contains(found->state, "sleeps"));
  EXPECT_TRUE(contains(text_of(found->stack), "wait_in_a_function_of_the_test"));
  is_over = true;
  is_over.notify_all();
  other.join();
}

TEST(ThreadReport, LeavesOutTheLibrarysOwnThreads) {
  std::atomic<bool> is_over{false};
  std::atomic<pid_t> number{0};
  std::thread own([&] {
    ::pthread_setname_np(::pthread_self(), "ddp-dump");
    number = ::gettid();
    is_over.wait(false);
  });
  while (number == 0) std::this_thread::yield();
  EXPECT_FALSE(report_of(number));
  is_over = true;
  is_over.notify_all();
  own.join();
}

}  // namespace
}  // namespace ddp
