// Ranks that wait in calls that never meet: found although nobody compares planned calls, and long before the timeout.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "base/thread_sample.hpp"
#include "comm/planned_calls.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/metrics.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

Group join(const Environment& environment) {
  ProcessGroupOptions options;
  options.environment = environment;
  options.timeout = 300s;
  return init_process_group(options);
}

// A wait is told after a second; the rest is for a busy machine.
constexpr auto kSoon = 3s;

void expect_mismatch(const std::function<void()>& call, const std::vector<std::string>& texts) {
  const auto start = Clock::now();
  try {
    call();
    ADD_FAILURE() << "no exception";
  } catch (const CallMismatchError& error) {
    EXPECT_TRUE(contains(error.what(), "the ranks wait in different calls, which never meet"));
    for (const auto& text : texts) EXPECT_TRUE(contains(error.what(), text));
  }
  EXPECT_LT(Clock::now() - start, kSoon);
}

void expect_success(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << ": " << outcome.ending() << '\n' << outcome.output;
}

void train(DistributedDataParallel<PerceptronImpl>& model, ProcessGroup& group, int steps) {
  for (int step = 0; step < steps; ++step) {
    group.mark_step(step);
    const auto batch = Batch::of_step(step, 4);
    squared_error(model(batch.input), batch.target).backward();
  }
}

// Rank 1 has fewer batches than the others and goes on to the evaluation.
void expect_a_loop_of_unequal_length_is_named(int world, const std::string& trainers) {
  expect_success(observe_ranks(world, [&](const Environment& environment) {
    const auto group = join(environment);
    DistributedDataParallel model(Perceptron(), group);
    expect_mismatch(
        [&] {
          train(model, *group, group->rank() == 1 ? 3 : 4);
          mean(0.5, *group);
        },
        {": probably rank 1 had fewer batches and left the loop earlier", "\n  " + trainers + ": all_reduce #",
         "\"bucket 1 of 1", " doubles) in step 3, made by the wrapped model", "\n  rank 1: all_reduce #",
         " \"mean\" (1 double) in step 3, called by the program", "make the same calls on all ranks"});
    EXPECT_THROW(group->barrier(), CallMismatchError) << "the group cannot go on";
  }));
}

TEST(StuckCalls, ABackwardAgainstAMeanAfterTheLoopIsNamedOnBothRanks) {
  expect_a_loop_of_unequal_length_is_named(2, "rank 0");
}

TEST(StuckCalls, ABackwardOfSeveralRanksAgainstAMeanIsNamedOnAll) {
  expect_a_loop_of_unequal_length_is_named(3, "ranks 0, 2");
}

TEST(StuckCalls, AMeanOfRankZeroAloneIsSuspectedUnderACondition) {
  expect_success(observe_ranks(3, [](const Environment& environment) {
    const auto group = join(environment);
    DistributedDataParallel model(Perceptron(), group);
    expect_mismatch(
        [&] {
          train(model, *group, 2);
          if (group->rank() == 0) mean(0.5, *group);
          train(model, *group, 1);
        },
        {": probably rank 0 has made a call under an `if (rank == 0)`, or has had fewer batches"});
  }));
}

TEST(StuckCalls, ABroadcastOfBuffersAgainstABarrierIsNamed) {
  expect_success(observe_ranks(2, [](const Environment& environment) {
    const auto group = join(environment);
    expect_mismatch(
        [&] {
          auto buffer = at::ones({8});
          if (group->rank() == 1) group->barrier();
          comm::PlannedCalls::broadcast(*group, buffer).wait();
        },
        {"rank 0: broadcast #1 (8 floats), made by the wrapped model", "rank 1: barrier #1, called by the program"});
  }));
}

TEST(StuckCalls, AMonitoredBarrierAgainstAnAllReduceIsNamed) {
  expect_success(observe_ranks(2, [](const Environment& environment) {
    const auto group = join(environment);
    expect_mismatch(
        [&] {
          auto tensor = at::ones({64});
          if (group->rank() == 0)
            group->monitored_barrier();
          else
            group->all_reduce(tensor);
        },
        {"rank 0: monitored_barrier #1", "rank 1: all_reduce #1 (64 floats)"});
  }));
}

// Rank 0 waits in both groups, rank 2 in none: only the group in which all its ranks are stuck is accused.
TEST(StuckCalls, InASubGroupLeaveTheWholeToGoOn) {
  expect_success(observe_ranks(3, [](const Environment& environment) {
    const auto group = join(environment);
    const auto part = group->new_group({0, 1});
    auto whole = at::ones({4}), own = at::ones({8});
    const auto in_whole = group->rank() == 0 ? group->all_reduce_async(whole) : Work();
    std::thread waits([&] { in_whole.wait(); });
    if (part) {
      expect_mismatch(
          [&] {
            if (group->rank() == 0) comm::PlannedCalls::all_reduce(*part, own).wait();
            if (group->rank() == 1) part->all_reduce(own);
          },
          {"rank 0: all_reduce #1 (8 floats), made by the wrapped model",
           "rank 1: all_reduce #1 (8 floats), called by the program"});
    }
    if (group->rank() != 0) group->all_reduce(whole);
    waits.join();
    EXPECT_TRUE(at::equal(whole, at::full({4}, 3.0)));
    group->shutdown();
  }));
}

// The pause is what is tested: it is longer than the time after which a mismatch is told.
TEST(StuckCalls, NobodyIsAccusedWhenARankIsSecondsLate) {
  expect_success(observe_ranks(3, [](const Environment& environment) {
    const auto group = join(environment);
    DistributedDataParallel model(Perceptron(), group);
    if (group->rank() == 1) std::this_thread::sleep_for(4s);
    train(model, *group, 2);
    EXPECT_EQ(mean(0.5, *group), 0.5);
    group->shutdown();
  }));
}

// A standard error that takes nothing more, until it is drained.
class FullStderr {
 public:
  FullStderr() : saved_(::dup(STDERR_FILENO)) {
    if (::pipe2(ends_, O_NONBLOCK) != 0) throw std::runtime_error("pipe");
    const std::string block(4096, ' ');
    while (::write(ends_[1], block.data(), block.size()) > 0) {
    }
    ::fcntl(ends_[1], F_SETFL, 0);
    ::dup2(ends_[1], STDERR_FILENO);
  }
  ~FullStderr() {
    ::dup2(saved_, STDERR_FILENO);
    for (const int end : {ends_[0], ends_[1], saved_}) ::close(end);
  }
  FullStderr(const FullStderr&) = delete;
  FullStderr& operator=(const FullStderr&) = delete;
  void drain() {
    std::array<char, 65536> bytes;
    while (::read(ends_[0], bytes.data(), bytes.size()) > 0) {
    }
  }

 private:
  int saved_;
  int ends_[2]{};
};

// The thread has made its call, whose line in the log it cannot write; meanwhile the group breaks and is given up.
void expect_a_call_to_outlive_its_broken_group(const std::function<void(ProcessGroup&, at::Tensor&)>& call) {
  ::setenv("DDP_LOG_SUBSYS", "coll", 1);
  expect_success(observe_ranks(2, [&](const Environment& environment) {
    const auto group = join(environment);
    auto tensor = at::ones({64});
    call(*group, tensor);
    std::atomic<pid_t> caller{0};
    FullStderr full;
    std::thread thread([&] {
      caller = ::gettid();
      try {
        call(*group, tensor);
      } catch (const CommError&) {  // unless both ranks have entered it
      }
    });
    const auto sleeps = [&] {
      const auto sample = sample_thread({::getpid(), caller});
      return sample && sample->state == 'S';
    };
    for (int seen = 0; seen < 20;) {
      seen = caller != 0 && sleeps() ? seen + 1 : 0;
      std::this_thread::sleep_for(1ms);
    }
    group->fail("given up");
    group->shutdown();
    std::atomic<bool> is_over{false};
    std::thread drainer([&] {
      while (!is_over) full.drain();
    });
    thread.join();
    is_over = true;
    drainer.join();
  }));
  ::unsetenv("DDP_LOG_SUBSYS");
}

TEST(StuckCalls, ThatAreBlockingOutliveTheirBrokenGroup) {
  expect_a_call_to_outlive_its_broken_group([](ProcessGroup& group, at::Tensor& tensor) { group.all_reduce(tensor); });
}

TEST(StuckCalls, ThatAreNotWaitedForOutliveTheirBrokenGroup) {
  expect_a_call_to_outlive_its_broken_group(
      [](ProcessGroup& group, at::Tensor& tensor) { group.broadcast_async(tensor).wait(); });
}

}  // namespace
}  // namespace ddp::testing
