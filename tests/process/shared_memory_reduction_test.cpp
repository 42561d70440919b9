// Over shared memory: reductions of many ranks, beside other processes, of the group's and of other memory, and their
// bits.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "process/shared_memory.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

at::Tensor own_memory(ProcessGroup& group, std::int64_t count, at::ScalarType dtype = at::kFloat) {
  return group.allocate(count * static_cast<std::int64_t>(at::elementSize(dtype))).view(dtype);
}

void expect_right_sums(int world) {
  expect_success(observe_ranks(world, [&](const Environment& environment) {
    const auto group = join(environment);
    const float sum = static_cast<float>(world * (world + 1)) / 2;
    for (const std::int64_t count : {1, 2048, 2049, 100'000})
      for (const bool is_own : {true, false}) {
        auto tensor = is_own ? own_memory(*group, count) : at::empty({count});
        tensor.fill_(static_cast<float>(group->rank() + 1));
        group->all_reduce(tensor);
        EXPECT_TRUE(tensor.eq(sum).all().item<bool>()) << count << (is_own ? " own" : " private");
      }
    const auto words = group->all_gather_bytes(std::to_string(group->rank()));
    for (int rank = 0; rank < world; ++rank) EXPECT_EQ(words.at(static_cast<std::size_t>(rank)), std::to_string(rank));
    group->shutdown();
  }));
}

TEST(SharedMemoryReduction, OfEightRanksIsRight) { expect_right_sums(8); }

TEST(SharedMemoryReduction, OfSixteenRanksIsRight) { expect_right_sums(16); }

// Processes that take all of the cores, until they are ended.
class Crowd {
 public:
  explicit Crowd(unsigned size) {
    for (unsigned i = 0; i < size; ++i) {
      const auto pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (std::atomic<unsigned long> turns{0};; ++turns) {
        }
      }
      members_.push_back(pid);
    }
  }
  ~Crowd() {
    for (const auto pid : members_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

 private:
  std::vector<pid_t> members_;
};

// A rank that waits awake for one that wants its core costs a turn of the scheduler each time, some milliseconds; where
// ranks do nothing else, the calls take tens of milliseconds each.
TEST(SharedMemoryReduction, GoesOnWhereOtherProcessesTakeTheCores) {
  const Crowd crowd(2 * std::thread::hardware_concurrency());
  expect_success(observe_ranks(2, [](const Environment& environment) {
    const auto group = join(environment);
    auto tensor = own_memory(*group, 16'384);
    group->barrier();
    const auto start = Clock::now();
    for (int call = 0; call < 200; ++call) group->all_reduce(tensor);
    EXPECT_LT(Clock::now() - start, 4s);
    group->shutdown();
  }));
}

TEST(SharedMemoryReduction, MayMixTheGroupsMemoryWithOther) {
  for (const int owner : {0, 1, 2})
    expect_success(observe_ranks(3, [&](const Environment& environment) {
      const auto group = join(environment);
      for (const std::int64_t count : {1, 2047, 2048, 2049, 70'000}) {
        auto tensor = group->rank() == owner ? own_memory(*group, count) : at::empty({count});
        for (int round = 0; round < 3; ++round) {
          tensor.fill_(static_cast<float>(group->rank() + 1 + round));
          group->all_reduce(tensor);
          EXPECT_TRUE(tensor.eq(static_cast<float>(6 + 3 * round)).all().item<bool>()) << count;
        }
      }
      group->shutdown();
    }));
}

TEST(SharedMemoryReduction, OfHalfTypesRoundsTheFloatSumInRankOrderOnce) {
  expect_success(observe_ranks(3, [](const Environment& environment) {
    const auto group = join(environment);
    for (const auto dtype : {at::kBFloat16, at::kHalf})
      for (const std::int64_t count : {5, 5000}) {
        std::vector<at::Tensor> inputs;
        for (int rank = 0; rank < 3; ++rank) {
          torch::manual_seed(rank);
          inputs.push_back(at::randn({count}).to(dtype));
        }
        const auto expected = ((inputs[0].to(at::kFloat) + inputs[1]) + inputs[2]).to(dtype);
        auto own = own_memory(*group, count, dtype), other = at::empty({count}, dtype);
        for (auto* const tensor : {&own, &other}) {
          tensor->copy_(inputs[static_cast<std::size_t>(group->rank())]);
          group->all_reduce(*tensor);
          EXPECT_TRUE(at::equal(*tensor, expected)) << dtype << ' ' << count;
        }
      }
    group->shutdown();
  }));
}

TEST(SharedMemoryReduction, IsTheSameCallWhateverTheStridesOnARank) {
  expect_success(observe_ranks(2, [](const Environment& environment) {
    const auto group = join(environment);
    for (const auto dtype : {at::kShort, at::kHalf, at::kBFloat16, at::kFloat, at::kComplexFloat, at::kBool})
      for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
        if (op == ReduceOp::avg && (dtype == at::kShort || dtype == at::kBool)) continue;
        auto tensor = at::ones({3, 5}, dtype);
        if (group->rank() == 1) tensor = tensor.t().contiguous().t();
        group->all_reduce(tensor, op);
        const double expected = op == ReduceOp::avg || dtype == at::kBool ? 1 : 2;
        EXPECT_TRUE(tensor.eq(expected).all().item<bool>()) << dtype;
      }
    group->shutdown();
  }));
}

TEST(SharedMemoryReduction, EndsWhereAnotherThreadShutsTheGroupDown) {
  for (int round = 0; round < 10; ++round)
    expect_success(observe_ranks(2, [](const Environment& environment) {
      const auto group = join(environment);
      std::atomic<int> calls{0};
      std::thread caller([&] {
        auto tensor = at::ones({64});
        try {
          for (;; ++calls) {
            group->all_reduce(tensor, ReduceOp::max);
            group->barrier();
          }
        } catch (const std::logic_error&) {  // shut down here
        } catch (const PeerLostError&) {     // or there
        }
      });
      while (calls < 100) std::this_thread::yield();
      const auto start = Clock::now();
      group->shutdown();
      caller.join();
      EXPECT_LT(Clock::now() - start, 8s);
    }));
}

TEST(SharedMemoryReduction, OfShortIntegersWraps) {
  expect_success(observe_ranks(2, [](const Environment& environment) {
    const auto group = join(environment);
    auto tensor = at::full({9}, 30'000, at::kShort);
    group->all_reduce(tensor);
    EXPECT_TRUE(tensor.eq(60'000 - 65'536).all().item<bool>());
    group->shutdown();
  }));
}

}  // namespace
}  // namespace ddp::testing
