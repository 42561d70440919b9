// Over shared memory: ranks that are killed or stopped at any point of a call, and what waiting for one costs.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <random>
#include <thread>

#include "ddp/distributed_data_parallel.hpp"
#include "process/shared_memory.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kWorld = 3, kVictim = 1;
constexpr std::int64_t kLarge = 4 << 20;  // floats: some milliseconds of work

/// A call that is made again and again, with what it needs.
using Call = std::function<void()>;
using MakeCall = std::function<Call(ProcessGroup&)>;

MakeCall reducing_private_memory() {
  return [](ProcessGroup& group) {
    return [&group, tensor = at::ones({kLarge})]() mutable { group.all_reduce(tensor, ReduceOp::max); };
  };
}

MakeCall reducing_shared_memory() {
  return [](ProcessGroup& group) {
    auto tensor = group.allocate(kLarge * 4).view(at::kFloat);
    return [&group, tensor]() mutable { group.all_reduce(tensor, ReduceOp::max); };
  };
}

MakeCall broadcasting(int root) {
  return [root](ProcessGroup& group) {
    return [&group, root, tensor = at::ones({kLarge})]() mutable { group.broadcast(tensor, root); };
  };
}

MakeCall gathering() {
  return [](ProcessGroup& group) {
    return [&group, tensor = at::ones({kLarge})] { static_cast<void>(group.all_gather(tensor)); };
  };
}

// Every rank sends to the next one and receives from the one before.
MakeCall sending() {
  return [](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
    return [&group, next, before, out = at::ones({kLarge}), in = at::ones({kLarge})]() mutable {
      const auto work = group.send_async(out, next);
      group.recv(in, before);
      work.wait();
    };
  };
}

using KillTime = Shared<std::atomic<Clock::rep>>;

void die(const KillTime& time) {
  *time = Clock::now().time_since_epoch().count();
  ::kill(::getpid(), SIGKILL);
}

void expect_victim_named_soon(const KillTime& killed, const Call& calls) {
  try {
    calls();
    ADD_FAILURE() << "no exception";
  } catch (const PeerLostError& error) {
    EXPECT_EQ(error.peer(), kVictim) << error.what();
    EXPECT_LT(Clock::now().time_since_epoch() - Clock::duration(killed->load()), 1s) << error.what();
  }
}

/// All ranks make calls until the victim, which has made its first one, does `deed`, which kills it.
void expect_survivors_name_the_victim(const MakeCall& make,
                                      const std::function<void(ProcessGroup&, const Call&, const KillTime&)>& deed) {
  const KillTime killed;
  const auto outcomes = observe_ranks(kWorld, [&](const Environment& environment) {
    const auto group = join(environment);
    const auto call = make(*group);
    call();
    group->barrier();
    if (group->rank() == kVictim) deed(*group, call, killed);
    expect_victim_named_soon(killed, [&] {
      for (;;) call();
    });
  });
  EXPECT_EQ(outcomes[kVictim].signal, SIGKILL) << outcomes[kVictim].ending() << outcomes[kVictim].output;
  expect_success(outcomes, kVictim);
}

/// The victim's calls go on until it is killed after `delay`, wherever it is then.
void expect_victim_named_when_killed_after(std::chrono::microseconds delay, const MakeCall& make) {
  expect_survivors_name_the_victim(make, [&](ProcessGroup&, const Call& call, const KillTime& killed) {
    std::thread([&killed, delay] {
      std::this_thread::sleep_for(delay);  // the time itself is what is tested
      die(killed);
    }).detach();
    for (;;) call();
  });
}

TEST(SharedMemoryKill, BeforeARankEntersACall) {
  for (const auto& make : {reducing_private_memory(), reducing_shared_memory(), gathering()})
    expect_survivors_name_the_victim(make, [](ProcessGroup&, const Call&, const KillTime& time) { die(time); });
}

TEST(SharedMemoryKill, OnceARankHasEnteredACallThatItDoesNotWaitFor) {
  for (const bool is_shared : {false, true}) {
    const auto make = is_shared ? reducing_shared_memory() : reducing_private_memory();
    expect_survivors_name_the_victim(make, [&](ProcessGroup& group, const Call&, const KillTime& time) {
      auto tensor = is_shared ? group.allocate(kLarge * 4).view(at::kFloat) : at::ones({kLarge});
      const auto work = group.all_reduce_async(tensor, ReduceOp::max);
      die(time);
    });
  }
}

TEST(SharedMemoryKill, InTheMiddleOfALargeReductionOfPrivateMemory) {
  for (const auto delay : {3000us, 21000us}) expect_victim_named_when_killed_after(delay, reducing_private_memory());
}

TEST(SharedMemoryKill, InTheMiddleOfALargeReductionOfSharedMemory) {
  for (const auto delay : {1000us, 9000us, 17000us})
    expect_victim_named_when_killed_after(delay, reducing_shared_memory());
}

TEST(SharedMemoryKill, InABroadcastAsRootOrNot) {
  for (const int root : {kVictim, 0}) expect_victim_named_when_killed_after(5000us, broadcasting(root));
}

TEST(SharedMemoryKill, InAnAllGather) { expect_victim_named_when_killed_after(7000us, gathering()); }

TEST(SharedMemoryKill, InTheMiddleOfMessages) {
  for (const auto delay : {4000us, 15000us}) expect_victim_named_when_killed_after(delay, sending());
}

TEST(SharedMemoryKill, AtAnyTimeOfMixedCalls) {
  std::mt19937 random(20);
  std::uniform_int_distribution<int> delay(0, 20000);
  for (int i = 0; i < 20; ++i) {
    const std::chrono::microseconds after(delay(random));
    SCOPED_TRACE(std::to_string(after.count()) + " us");
    expect_victim_named_when_killed_after(after, [](ProcessGroup& group) {
      auto shared = group.allocate(1 << 20).view(at::kFloat);
      return [&group, shared, small = at::ones({64}), large = at::ones({1 << 18})]() mutable {
        group.all_reduce(small, ReduceOp::max);
        group.all_reduce(shared, ReduceOp::max);
        group.all_reduce(large, ReduceOp::max);
        static_cast<void>(group.all_gather(small));
        group.broadcast(large, 2);
        group.barrier();
      };
    });
  }
}

/// The others stop the victim after `delay`, time out, and let it go on.
void expect_victim_named_when_stopped_after(std::chrono::microseconds delay, const MakeCall& make) {
  RanksOptions options;
  options.limit = 15s;
  const Gate is_over;
  expect_success(observe_ranks(
      kWorld,
      [&](const Environment& environment) {
        const auto group = join(environment, 700ms);
        const auto pids = group->all_gather_bytes(std::to_string(::getpid()));
        const auto victim = std::stoi(pids[kVictim]);
        const auto call = make(*group);
        call();
        if (group->rank() == 0) {
          std::thread([=] {
            std::this_thread::sleep_for(delay);  // the time itself is what is tested
            ::kill(victim, SIGSTOP);
          }).detach();
        }
        try {
          for (;;) call();
        } catch (const CommError& error) {
          EXPECT_TRUE(group->rank() == kVictim || contains(error.what(), "rank 1: no answer"));
        }
        if (group->rank() == 2) is_over.open();
        if (group->rank() == 0) {
          is_over.pass();
          ::kill(victim, SIGCONT);
        }
        EXPECT_THROW(call(), CommError);
      },
      options));
}

TEST(SharedMemoryStop, ARankStoppedInAReductionOfPrivateMemoryIsNamedAtTheTimeout) {
  expect_victim_named_when_stopped_after(9000us, reducing_private_memory());
}

TEST(SharedMemoryStop, ARankStoppedInAReductionOfSharedMemoryIsNamedAtTheTimeout) {
  expect_victim_named_when_stopped_after(6000us, reducing_shared_memory());
}

TEST(SharedMemoryStop, ARankStoppedInAnAllGatherIsNamedAtTheTimeout) {
  expect_victim_named_when_stopped_after(12000us, gathering());
}

// A megabyte is little enough for a call that runs without any ceremony.
TEST(SharedMemoryStop, InTheMiddleOfASmallReductionCostsNoMoreThanTheTimeoutAndHoldsUpNoOtherThread) {
  for (const auto delay : {3000us, 7100us}) {
    RanksOptions options;
    options.limit = 20s;
    expect_success(observe_ranks(
        2,
        [&](const Environment& environment) {
          const auto group = join(environment, 1s);
          const auto pids = group->all_gather_bytes(std::to_string(::getpid()));
          auto tensor = at::ones({1 << 18}), other = at::ones({4});
          group->all_reduce(tensor, ReduceOp::max);
          if (group->rank() == kVictim) {
            std::thread([=] {
              std::this_thread::sleep_for(delay);  // the time itself is what is tested
              ::kill(::getpid(), SIGSTOP);
            }).detach();
            EXPECT_THROW(for (;;) group->all_reduce(tensor, ReduceOp::max), CommError);
            return;
          }
          std::atomic<Clock::rep> began{Clock::now().time_since_epoch().count()};
          const auto since = [&] { return Clock::now().time_since_epoch() - Clock::duration(began); };
          std::thread beside([&] {
            while (since() < 300ms) std::this_thread::yield();
            const auto start = Clock::now();
            static_cast<void>(group->all_reduce_async(other));
            EXPECT_LT(Clock::now() - start, 500ms);
          });
          try {
            for (;; began = Clock::now().time_since_epoch().count()) group->all_reduce(tensor, ReduceOp::max);
          } catch (const CommError& error) {
            EXPECT_TRUE(contains(error.what(), "rank 1: no answer")) << error.what();
            EXPECT_LT(since(), 2600ms) << "the timeout, the reports and the dump";
          }
          beside.join();
          ::kill(std::stoi(pids[kVictim]), SIGCONT);
        },
        options));
  }
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Rank 0 is two seconds late.
void expect_cheap_wait(int world, const MakeCall& make) {
  expect_success(observe_ranks(world, [&](const Environment& environment) {
    const auto group = join(environment);
    at::set_num_threads(1);
    const auto call = make(*group);
    call();
    group->barrier();
    if (group->rank() == 0) std::this_thread::sleep_for(2s);  // the time itself is what is tested
    const auto start = Clock::now();
    const auto before = cpu_seconds();
    call();
    if (group->rank() == 0) return;
    EXPECT_GT(Clock::now() - start, 1s);
    EXPECT_LT(cpu_seconds() - before, 0.4);
  }));
}

MakeCall training_a_step() {
  return [](ProcessGroup& group) {
    DistributedDataParallel model(Perceptron(), group.shared_from_this());
    return
        [model, batch = Batch::of_step(0, 4)]() mutable { squared_error(model(batch.input), batch.target).backward(); };
  };
}

TEST(SharedMemoryWait, OfTwoRanksInAnAllReduceLeavesTheCoreToOthers) {
  expect_cheap_wait(2, reducing_private_memory());
}

TEST(SharedMemoryWait, OfFourRanksInAnAllReduceLeavesTheCoreToOthers) {
  expect_cheap_wait(4, reducing_shared_memory());
}

TEST(SharedMemoryWait, OfTwoRanksInABackwardLeavesTheCoreToOthers) { expect_cheap_wait(2, training_a_step()); }

TEST(SharedMemoryWait, OfFourRanksInABackwardLeavesTheCoreToOthers) { expect_cheap_wait(4, training_a_step()); }

}  // namespace
}  // namespace ddp::testing
