#include "base/thread_sample.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "thread_in_wait.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// A /proc in which thread 8 of process 7 is the only one.
class ThreadSampleFiles : public testing::Test {
 protected:
  ThreadSampleFiles() : root_(fs::path(testing::TempDir()) / ("thread_sample_" + std::to_string(getpid()))) {
    write("stat",
          "8 (a) R (b) D 1 8 8 0 -1 4194560 100 200 31 400 5 6 7 8 20 0 3 0 4711 1000 10 "
          "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 12 0 0\n");
  }
  ~ThreadSampleFiles() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories(root_ / "7/task/8");
    std::ofstream(root_ / "7/task/8" / name) << text;
  }
  std::optional<ThreadSample> sample(std::uint64_t started = 0) { return sample_thread({7, 8, started}, root_); }
  std::string call(const std::string& text) {
    write("syscall", text);
    return sample().value().system_call;
  }
  const fs::path root_;
};

TEST_F(ThreadSampleFiles, ANameWithBracketsAndSpacesDoesNotShiftTheFields) {
  const auto read = sample();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->state, 'D');
  EXPECT_EQ(read->major_faults, 31u);
  EXPECT_EQ(read->started, 4711u);
  const auto tick = std::chrono::nanoseconds(1s) / sysconf(_SC_CLK_TCK);
  EXPECT_EQ(read->on_core, 11 * tick);
  EXPECT_EQ(read->waited_for_disk, 12 * tick);
}

TEST_F(ThreadSampleFiles, OnlyStatHasToBeThere) {
  const auto read = sample();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->waits, 0u);
  EXPECT_EQ(read->waited_for_core, 0ns);
  EXPECT_EQ(read->system_call, "");
  EXPECT_EQ(read->kernel_function, "");
}

TEST_F(ThreadSampleFiles, TheOtherFilesAddWhatTheyKnow) {
  write("status",
        "Name:\tTracerPid:\nTracerPid:\t99\nSigPnd:\t0000000000000001\nSigBlk:\t8000000000000002\n"
        "voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t3\n");
  write("schedstat", "900000000 70000 12\n");
  write("wchan", "folio_wait_bit_common");
  const auto read = sample();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->tracer, 99);
  EXPECT_EQ(read->pending_signals, 1u);
  EXPECT_EQ(read->blocked_signals, 0x8000000000000002u);
  EXPECT_EQ(read->waits, 150u);
  EXPECT_EQ(read->on_core, 900ms);
  EXPECT_EQ(read->waited_for_core, 70us);
  EXPECT_EQ(read->kernel_function, "folio_wait_bit_common");
}

TEST_F(ThreadSampleFiles, AScheduleWithoutCountsLeavesTheTicks) {
  const auto before = sample().value().on_core;
  write("schedstat", "0 0 0\n");
  EXPECT_EQ(sample().value().on_core, before);
}

TEST_F(ThreadSampleFiles, NoWaitChannelIsAZero) {
  write("wchan", "0");
  EXPECT_EQ(sample().value().kernel_function, "");
}

TEST_F(ThreadSampleFiles, ASystemCallHasItsNameAndItsFile) {
  fs::create_directories(root_ / "7/fd");
  fs::create_symlink("/data/train.bin", root_ / "7/fd/26");
  const auto read = std::to_string(SYS_read);
  EXPECT_EQ(call(read + " 0x1a 0x7f00 0x1000 0x0 0x0 0x0 0x7ffd 0x7f01\n"), "read of /data/train.bin");
  EXPECT_EQ(call(read + " 0x1b 0x7f00 0x1000 0x0 0x0 0x0 0x7ffd 0x7f01\n"), "read");
  EXPECT_EQ(call(std::to_string(SYS_futex) + " 0x1a 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7f01\n"), "futex");
  EXPECT_EQ(call("9999 0x1 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7f01\n"), "system call 9999");
  EXPECT_EQ(call("-1 0x7ffd 0x7f01\n"), "");
  EXPECT_EQ(call("running\n"), "");
}

TEST_F(ThreadSampleFiles, WhatIsGoneUnreadableOrAnotherThreadGivesNothing) {
  EXPECT_FALSE(sample_thread({7, 9}, root_));
  EXPECT_FALSE(sample_thread({6, 8}, root_));
  EXPECT_TRUE(sample(4711));
  EXPECT_FALSE(sample(4712));
  for (const auto* text : {"", "8", "8 (a) R 1 8 8", "nonsense"}) {
    write("stat", text);
    EXPECT_FALSE(sample()) << text;
  }
}

TEST(ThreadSample, ThisThreadRunsAndHasAStart) {
  const auto self = this_thread();
  EXPECT_EQ(self.process, getpid());
  EXPECT_NE(self.started, 0u);
  EXPECT_EQ(sample_thread(self).value().state, 'R');
}

TEST(ThreadSample, AThreadThatHasBeenJoinedIsGone) {
  waiting::Thread thread([] {});
  thread.join();
  EXPECT_FALSE(sample_thread(thread.id()));
}

}  // namespace
}  // namespace ddp
