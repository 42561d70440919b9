#include "base/thread_stack.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <mutex>

#include "thread_in_wait.hpp"

/// Reads until the other end is closed. Each of these does something after its call, so that it keeps its frame.
[[gnu::noinline]] int ddp_test_blocked_in_read(int reader) {
  char byte = 0;
#ifdef __SANITIZE_THREAD__  // its read() keeps signals back until it returns, its poll() does not
  pollfd entry{reader, POLLIN, 0};
  while (::poll(&entry, 1, -1) < 0) {
  }
#endif
  const auto length = ::read(reader, &byte, 1);
  return static_cast<int>(length) + 1;
}

/// With a level of recursion for each of `depth`.
[[gnu::noinline]] int ddp_test_deep(int depth, int reader) {
  const int inner = depth == 0 ? ddp_test_blocked_in_read(reader) : ddp_test_deep(depth - 1, reader);
  return inner + 1;
}

[[gnu::noinline]] int ddp_test_outermost(int depth, int reader) { return ddp_test_deep(depth, reader) + 1; }

namespace ddp {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr StackLimits kPatient{.frames = 40, .time = 10s};  // for a busy machine
#ifdef __SANITIZE_THREAD__                                  // ten times as slow
constexpr int kTimes = 200;
#else
constexpr int kTimes = 1000;
#endif

std::string text_of(const ThreadStack& stack) {
  std::string text = stack.missing;
  for (const auto& line : stack.frames) text += "\n" + line;
  return text;
}

std::ptrdiff_t place_of(const ThreadStack& stack, const std::string& function) {
  const auto line = std::ranges::find_if(
      stack.frames, [&](const std::string& each) { return each.find(function) != std::string::npos; });
  return line == stack.frames.end() ? -1 : line - stack.frames.begin();
}

/// A thread in the read of a pipe, `depth` calls deep.
class Reader {
 public:
  explicit Reader(int depth = 0) : thread_([this, depth] { result_ = ddp_test_outermost(depth, pipe_.reader()); }) {
    EXPECT_TRUE(waiting::comes_into(thread_.id(), 'S'));
  }
  ~Reader() { pipe_.close_writer(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  pid_t id() const { return thread_.id().thread; }
  /// What read() has returned.
  int join(int depth = 0) {
    pipe_.close_writer();
    thread_.join();
    return result_ - depth - 3;
  }

 private:
  waiting::Pipe pipe_;
  int result_ = 0;
  waiting::Thread thread_;
};

TEST(ThreadStack, ABlockedThreadShowsTheFunctionThatBlocks) {
  Reader reader;
  const auto stack = stack_of(reader.id(), kPatient);
  EXPECT_EQ(stack.missing, "");
  const auto blocked = place_of(stack, "ddp_test_blocked_in_read(int) in unit_base(+0x");
  EXPECT_GT(blocked, 0) << text_of(stack);
  EXPECT_LE(blocked, 4) << text_of(stack);
  EXPECT_GT(place_of(stack, "ddp_test_outermost(int, int) in unit_base(+0x"), blocked) << text_of(stack);
}

TEST(ThreadStack, TheFramesOfTheRequestAreNotShown) {
  Reader reader;
  const auto stack = stack_of(reader.id(), kPatient);
  ASSERT_FALSE(stack.frames.empty());
  EXPECT_EQ(place_of(stack, "on_signal"), -1) << text_of(stack);
  EXPECT_EQ(place_of(stack, "answer"), -1) << text_of(stack);
  EXPECT_EQ(place_of(stack, "backtrace"), -1) << text_of(stack);
}

TEST(ThreadStack, ARequestDoesNotEndARead) {
  Reader reader;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(stack_of(reader.id(), kPatient).missing, "");
  EXPECT_EQ(reader.join(), 0);
}

TEST(ThreadStack, OfADeepStackBothEndsAreShown) {
  constexpr int depth = 100;
  Reader reader(depth);
  const auto stack = stack_of(reader.id(), {.frames = 20, .time = 10s});
  ASSERT_EQ(stack.frames.size(), 21u) << text_of(stack);
  EXPECT_NE(place_of(stack, "ddp_test_blocked_in_read"), -1) << text_of(stack);
  EXPECT_EQ(stack.frames[15].find("... "), 0u) << text_of(stack);
  EXPECT_EQ(place_of(stack, " frames ..."), 15);
  EXPECT_EQ(reader.join(depth), 0);
}

TEST(ThreadStack, AStackWithoutEndHasItsInnermostFrames) {
  constexpr int depth = 5000;
  Reader reader(depth);
  const auto stack = stack_of(reader.id(), kPatient);
  EXPECT_EQ(stack.frames.size(), 41u) << text_of(stack);
  EXPECT_NE(place_of(stack, "ddp_test_blocked_in_read"), -1) << text_of(stack);
}

TEST(ThreadStack, AThreadMayAskForItsOwn) {
  const auto stack = stack_of(this_thread().thread, kPatient);
  EXPECT_NE(place_of(stack, "AThreadMayAskForItsOwn"), -1) << text_of(stack);
}

TEST(ThreadStack, AThreadThatBlocksTheSignalIsNotAsked) {
  waiting::Pipe pipe;
  std::atomic<bool> unblocked = false;
  waiting::Pipe again;
  waiting::Thread thread([&] {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    ddp_test_blocked_in_read(pipe.reader());
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    unblocked = true;
    ddp_test_blocked_in_read(again.reader());
  });
  EXPECT_TRUE(waiting::comes_into(thread.id(), 'S'));
  const auto stack = stack_of(thread.id().thread, {.time = 20ms});
  EXPECT_TRUE(stack.frames.empty()) << text_of(stack);
  EXPECT_EQ(stack.missing, "the thread blocks signal " + std::to_string(SIGRTMIN + 13));
  pipe.close_writer();
  EXPECT_TRUE(waiting::comes_true([&] { return unblocked.load(); }));
  EXPECT_NE(place_of(stack_of(thread.id().thread, kPatient), "ddp_test_blocked_in_read"), -1);
  again.close_writer();
}

/// In state D it takes no signal; what it is asked then, it answers after its end.
TEST(ThreadStack, AnAnswerThatComesTooLateHarmsNobody) {
  waiting::UninterruptibleWait wait;
  waiting::Pipe pipe;
  waiting::Thread thread([&] {
    wait();
    ddp_test_blocked_in_read(pipe.reader());
  });
  EXPECT_TRUE(waiting::comes_into(thread.id(), 'D'));
  const auto begin = Clock::now();
  EXPECT_EQ(stack_of(thread.id().thread, {.time = 50ms}).missing, "no answer within 50 ms");
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_EQ(stack_of(thread.id().thread, {.time = 20ms}).missing, "no answer to an earlier request yet");
  Reader other;
  EXPECT_NE(place_of(stack_of(other.id(), kPatient), "ddp_test_blocked_in_read"), -1);
  wait.end();
  EXPECT_TRUE(waiting::comes_true(
      [&] { return place_of(stack_of(thread.id().thread, {.time = 50ms}), "ddp_test_blocked_in_read") != -1; }));
  pipe.close_writer();
}

TEST(ThreadStack, AThreadThatHasEndedIsSaidToHaveEnded) {
  waiting::Thread thread([] {});
  thread.join();
  const auto stack = stack_of(thread.id().thread, kPatient);
  EXPECT_TRUE(stack.frames.empty()) << text_of(stack);
  EXPECT_EQ(stack.missing, "the thread has ended");
}

/// A thread that allocates, and hands a number back and forth with another one, until the object's end.
class Worker {
 public:
  ~Worker() { stop_ = true; }
  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  pid_t id() const { return ping_.id().thread; }
  long turns() const { return turns_; }

 private:
  void play(int own) {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return turns_ % 2 == own || stop_; });
      const std::vector<std::string> memory(20, std::string(100, 'x'));
      turns_ += static_cast<long>(memory.size()) - 19;
      changed_.notify_one();
      if (stop_) return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<long> turns_ = 0;
  std::atomic<bool> stop_ = false;
  waiting::Thread ping_{[this] { play(0); }};
  waiting::Thread pong_{[this] { play(1); }};
};

TEST(ThreadStack, AThreadThatWorksAnswersEachTime) {
  Worker worker;
  for (int i = 0; i < kTimes; ++i) {
    const auto stack = stack_of(worker.id(), kPatient);
    ASSERT_FALSE(stack.frames.empty()) << stack.missing;
  }
  const long before = worker.turns();
  EXPECT_TRUE(waiting::comes_true([&] { return worker.turns() > before + 1; }));
}

TEST(ThreadStack, TwoMayAskAtOnce) {
  Reader first, second;
  const auto ask = [&] {
    for (int i = 0; i < kTimes / 10; ++i) {
      EXPECT_NE(place_of(stack_of(first.id(), kPatient), "ddp_test_blocked_in_read"), -1);
      EXPECT_NE(place_of(stack_of(second.id(), kPatient), "ddp_test_blocked_in_read"), -1);
    }
  };
  const waiting::Thread one(ask);
  const waiting::Thread two(ask);
}

TEST(ThreadStack, ThreadsMayEndWhileTheyAreAsked) {
  for (int i = 0; i < 50; ++i) {
    std::atomic<bool> go = false;
    const waiting::Thread thread([&] { go.wait(false); });
    const waiting::Thread asker([&] {
      go = true;
      go.notify_one();
      const auto stack = stack_of(thread.id().thread, {.time = 100ms});
      EXPECT_EQ(stack.missing.empty(), !stack.frames.empty()) << text_of(stack);
    });
  }
}

/// In a process of its own, since the handler stays.
TEST(ThreadStack, ASignalThatTheProgramHandlesIsLeftAlone) {
  const auto handled = [] {
    ::signal(SIGRTMIN + 13, [](int) {});
    const auto stack = stack_of(this_thread().thread, kPatient);
    struct sigaction now{};
    ::sigaction(SIGRTMIN + 13, nullptr, &now);
    const bool kept = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler != SIG_DFL;
    std::fputs(stack.missing.c_str(), stderr);
    std::exit(kept && stack.frames.empty() ? 7 : 8);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(handled(), ::testing::ExitedWithCode(7),
              "^the program uses signal " + std::to_string(SIGRTMIN + 13) + " itself$");
}

}  // namespace
}  // namespace ddp
