#include "base/thread_state.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <vector>

#include "thread_in_wait.hpp"

namespace ddp {
namespace {

using namespace std::chrono_literals;

/// Samples 10 ms apart in these states, in which the counters rise evenly to the sums of `last`.
std::vector<ThreadSample> samples_of(const std::string& states, const ThreadSample& last = {}) {
  std::vector<ThreadSample> samples;
  const auto steps = static_cast<std::int64_t>(states.size()) - 1;
  for (std::int64_t i = 0; i <= steps; ++i) {
    auto sample = last;
    sample.state = states[static_cast<std::size_t>(i)];
    sample.taken = 1000s + i * 10ms;
    sample.on_core = 5s + last.on_core * i / steps;
    sample.waited_for_core = 6s + last.waited_for_core * i / steps;
    sample.waited_for_disk = 7s + last.waited_for_disk * i / steps;
    sample.major_faults = 800 + last.major_faults * static_cast<std::uint64_t>(i) / static_cast<std::uint64_t>(steps);
    sample.waits = 900 + last.waits * static_cast<std::uint64_t>(i) / static_cast<std::uint64_t>(steps);
    samples.push_back(sample);
  }
  return samples;
}

std::string verdict(const std::string& states, const ThreadSample& last = {}) {
  return described(judge(samples_of(states, last)));
}

const std::string kRuns = "RRRRRRRRRRR", kSleeps = "SSSSSSSSSSS", kWaits = "DDDDDDDDDDD";

TEST(ThreadState, ABusyLoopRuns) {
  EXPECT_EQ(verdict(kRuns, {.on_core = 97ms}), "runs (97 % of a core)");
  EXPECT_EQ(verdict("RRSRRSRRSRR", {.waits = 3, .on_core = 60ms}), "runs (60 % of a core)");
}

TEST(ThreadState, ASleepSaysWhere) {
  EXPECT_EQ(verdict(kSleeps), "sleeps");
  EXPECT_EQ(verdict(kSleeps, {.kernel_function = "futex_wait_queue"}), "sleeps (futex_wait_queue)");
  EXPECT_EQ(verdict(kSleeps, {.system_call = "read of pipe:[5]", .kernel_function = "pipe_read"}),
            "sleeps (read of pipe:[5])");
}

TEST(ThreadState, AThreadThatPollsIsToldFromOneThatHangs) {
  EXPECT_EQ(verdict(kSleeps, {.waits = 90, .on_core = 5ms, .system_call = "nanosleep"}),
            "sleeps and wakes 900 times/s (5 % of a core; nanosleep)");
  EXPECT_EQ(verdict("SSRSSSRSSSS", {.waits = 90, .on_core = 5ms}), "sleeps and wakes 900 times/s (5 % of a core)");
}

TEST(ThreadState, AWaitForADiskNeedsHalfTheLooks) {
  EXPECT_EQ(verdict(kWaits), "waits for a disk or a driver");
  EXPECT_EQ(verdict("DRDSDDRDDSD", {.waited_for_disk = 60ms}), "waits for a disk");
  EXPECT_EQ(verdict(kWaits, {.waited_for_disk = 90ms, .system_call = "pread of /data/train.bin"}),
            "waits for a disk (pread of /data/train.bin)");
  EXPECT_EQ(verdict("SSSSSDSSSSS"), "sleeps");
  EXPECT_EQ(verdict("SSSSSSSSSSD"), "sleeps");
}

TEST(ThreadState, ThePlaceIsThatOfTheWaitNotOfTheLastLook) {
  auto samples = samples_of("DDDDDDDDDDR");
  samples[9].system_call = "fsync of /data/checkpoint";
  EXPECT_EQ(described(judge(samples)), "waits for a disk or a driver (fsync of /data/checkpoint)");
}

TEST(ThreadState, PagesThatComeBackAreCounted) {
  EXPECT_EQ(verdict("DRDDSDDRDDD", {.major_faults = 12, .waited_for_disk = 80ms}),
            "reads pages back from disk (120 major faults/s)");
  EXPECT_EQ(verdict("RRDRRSRRDRR", {.major_faults = 50, .on_core = 60ms}),
            "reads pages back from disk (500 major faults/s)");
  EXPECT_EQ(verdict(kRuns, {.major_faults = 5000, .on_core = 95ms}),
            "reads pages back from disk (50000 major faults/s)");
}

TEST(ThreadState, AFewFaultsOfAWorkingThreadAreNoHindrance) {
  EXPECT_EQ(verdict(kRuns, {.major_faults = 20, .on_core = 95ms}), "runs (95 % of a core)");
  EXPECT_EQ(verdict("RRRRRSRRRRR", {.major_faults = 3, .waits = 1, .on_core = 70ms}), "runs (70 % of a core)");
}

TEST(ThreadState, AThreadWithoutACoreIsStarved) {
  EXPECT_EQ(verdict(kRuns, {.on_core = 18ms, .waited_for_core = 82ms}), "waits for a core (82 % of the time)");
  EXPECT_EQ(verdict("RSRRRRRRRSR", {.on_core = 20ms, .waited_for_core = 60ms}), "waits for a core (60 % of the time)");
}

TEST(ThreadState, AWaitForACoreThatHasNotEndedYetCounts) {
  EXPECT_EQ(verdict(kRuns), "waits for a core (100 % of the time)");
  EXPECT_EQ(verdict(kRuns, {.on_core = 30ms}), "waits for a core (70 % of the time)");
}

TEST(ThreadState, AThreadThatWakesAtEachLookIsNotStarved) {
  EXPECT_EQ(verdict(kRuns, {.waits = 10, .on_core = 1ms}), "runs (1 % of a core)");
}

TEST(ThreadState, StoppedTracedAndFrozenThreadsAreToldApart) {
  EXPECT_EQ(verdict("TTTTTTTTTTT"), "is stopped (SIGSTOP or Ctrl-Z)");
  EXPECT_EQ(verdict("ttttttttttt", {.tracer = 77}), "is held by a debugger (process 77)");
  EXPECT_EQ(verdict(kSleeps, {.kernel_function = "do_freezer_trap"}), "is frozen (its container or cgroup is paused)");
  EXPECT_EQ(verdict(kWaits, {.kernel_function = "__refrigerator"}), "is frozen (its container or cgroup is paused)");
  EXPECT_EQ(verdict("RtRRtRRtRRR", {.on_core = 80ms, .tracer = 77}), "runs (80 % of a core)");
}

TEST(ThreadState, WhatEndsMeanwhileHasEnded) {
  EXPECT_EQ(verdict("RRRRRRRRRRZ", {.on_core = 95ms}), "has ended");
  EXPECT_EQ(verdict("RX"), "has ended");
}

TEST(ThreadState, FewSamplesAreJudgedByTheirStates) {
  EXPECT_EQ(described(judge({})), "cannot be seen in /proc");
  EXPECT_EQ(judge(std::vector<ThreadSample>{{.state = 'R'}}).hindrance, Hindrance::running);
  EXPECT_EQ(judge(std::vector<ThreadSample>{{.state = 'D'}}).hindrance, Hindrance::disk_wait);
}

[[noreturn]] void spin() {
  for (std::atomic<unsigned> turns = 0;; ++turns) {
  }
}

TEST(ThreadStateLive, AStoppedChildIsStoppedUntilItGoesOn) {
  waiting::Process child([] {
    for (;;) ::pause();
  });
  ASSERT_TRUE(waiting::comes_into(child.main_thread(), 'S'));
  EXPECT_EQ(hindrance_of(child.main_thread()).hindrance, Hindrance::sleeping);
  int status = 0;
  ::kill(child.pid(), SIGSTOP);
  ASSERT_EQ(::waitpid(child.pid(), &status, WUNTRACED), child.pid());
  EXPECT_EQ(described(hindrance_of(child.main_thread())), "is stopped (SIGSTOP or Ctrl-Z)");
  ::kill(child.pid(), SIGCONT);
  ASSERT_TRUE(waiting::comes_into(child.main_thread(), 'S'));
  EXPECT_EQ(hindrance_of(child.main_thread()).hindrance, Hindrance::sleeping);
}

/// On a busy machine it gets less than half of a core, and says so.
TEST(ThreadStateLive, AChildThatSpinsRunsAsFarAsItHasACore) {
  const waiting::Process child(spin);
  const auto state = hindrance_of(child.main_thread(), 200ms);
  EXPECT_GT(state.on_core, 0.02) << described(state);
  EXPECT_GT(state.on_core + state.without_core, 0.8) << described(state);
  EXPECT_EQ(state.hindrance, state.without_core < 0.5 ? Hindrance::running : Hindrance::starved) << described(state);
}

TEST(ThreadStateLive, FourChildrenOnOneCoreAreStarved) {
  cpu_set_t allowed, one;
  CPU_ZERO(&allowed);
  CPU_ZERO(&one);
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  const std::vector<int> cores = [&] {
    std::vector<int> all;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &allowed)) all.push_back(core);
    }
    return all;
  }();
  CPU_SET(cores.front(), &one);
  std::vector<std::unique_ptr<waiting::Process>> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(std::make_unique<waiting::Process>(spin));
    ASSERT_EQ(::sched_setaffinity(children.back()->pid(), sizeof one, &one), 0);
  }
  const auto state = hindrance_of(children[0]->main_thread(), 300ms);
  EXPECT_EQ(state.hindrance, Hindrance::starved) << described(state);
}

TEST(ThreadStateLive, AThreadOfThisProcessWaitsUninterruptibly) {
  waiting::UninterruptibleWait wait;
  const waiting::Thread thread(std::ref(wait));
  EXPECT_TRUE(waiting::comes_into(thread.id(), 'D'));
  const auto state = hindrance_of(thread.id());
  EXPECT_EQ(state.hindrance, Hindrance::disk_wait) << described(state);
  wait.end();
}

/// The own process's calls are always permitted to see, where the kernel has the file.
TEST(ThreadStateLive, AThreadOfThisProcessSleepsInItsRead) {
  waiting::Pipe pipe;
  const waiting::Thread thread([&] {
    char byte = 0;
    EXPECT_EQ(::read(pipe.reader(), &byte, 1), 0);
  });
  EXPECT_TRUE(waiting::comes_into(thread.id(), 'S'));
  const auto state = hindrance_of(thread.id());
  EXPECT_EQ(state.hindrance, Hindrance::sleeping) << described(state);
  if (std::filesystem::exists("/proc/self/syscall")) {
    EXPECT_EQ(state.waits_in.find("read of pipe:["), 0u) << described(state);
  }
  pipe.close_writer();
}

TEST(ThreadStateLive, AChildThatHasEndedIsSaidToHaveEnded) {
  auto child = std::make_unique<waiting::Process>([] {});
  const auto thread = child->main_thread();
  ASSERT_TRUE(waiting::comes_into(thread, 'Z'));
  EXPECT_EQ(described(hindrance_of(thread)), "has ended");
  child.reset();
  EXPECT_EQ(described(hindrance_of(thread)), "has ended");
}

TEST(ThreadStateLive, AnotherThreadOfTheSameNumberIsNotTheOneAskedFor) {
  auto self = this_thread();
  self.started += 1;
  EXPECT_EQ(hindrance_of(self).hindrance, Hindrance::ended);
}

}  // namespace
}  // namespace ddp
