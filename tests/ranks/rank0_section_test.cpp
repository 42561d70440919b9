// Work of rank 0 alone, for which the others wait outside of the backend.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <stdexcept>
#include <thread>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

void reduce(ProcessGroup& group) {
  auto tensor = at::ones({8});
  group.all_reduce(tensor);
  EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(group.size()));
}

TEST(Rank0Section, IsRunByRankZeroAloneAndOverForAllWhenItReturns) {
  run_ranks(3, [](const Group& group) {
    const auto start = Clock::now();
    for (int round = 0; round < 20; ++round) {
      int runs = 0;
      group->rank0_section([&] {
        ++runs;
        if (round == 7) std::this_thread::sleep_for(300ms);
      });
      EXPECT_EQ(runs, group->rank() == 0 ? 1 : 0);
      reduce(*group);
    }
    EXPECT_GE(Clock::now() - start, 300ms);
  });
}

// Fault R55.
TEST(Rank0Section, MayLastLongerThanTheGroupsTimeout) {
  RanksOptions options;
  options.group_timeout = 1s;
  run_ranks(
      2,
      [](const Group& group) {
        group->rank0_section([] { std::this_thread::sleep_for(2500ms); }, {.timeout = 20s});
        reduce(*group);
      },
      options);
}

TEST(Rank0Section, ThatThrowsThrowsOnAllRanksAndTheGroupGoesOn) {
  run_ranks(3, [](const Group& group) {
    try {
      group->rank0_section([] { throw std::domain_error("the disk is full"); }, {.label = "save"});
      ADD_FAILURE() << "no exception";
    } catch (const std::domain_error& error) {
      EXPECT_EQ(group->rank(), 0);
      EXPECT_STREQ(error.what(), "the disk is full");
    } catch (const PeerLostError& error) {
      EXPECT_NE(group->rank(), 0);
      EXPECT_EQ(error.peer(), 0);
      EXPECT_TRUE(contains(error.what(), "rank0_section #1 \"save\": rank 0 failed: the disk is full"));
    }
    reduce(*group);
  });
}

TEST(Rank0Section, ThatThrowsWithoutATextOrWithAVeryLongOneFailsOnAllRanks) {
  run_ranks(2, [](const Group& group) {
    for (const auto& text : {std::string(), std::string("\n"), std::string(16U << 20U, 'x')}) {
      const auto call = [&] { group->rank0_section([&] { throw std::domain_error(text); }); };
      if (group->rank() == 0)
        EXPECT_THROW(call(), std::domain_error);
      else
        EXPECT_THROW(call(), PeerLostError);
    }
    reduce(*group);
  });
}

TEST(Rank0Section, MayHaveAnyTimeout) {
  run_ranks(2, [](const Group& group) {
    group->rank0_section([] { std::this_thread::sleep_for(100ms); }, {.timeout = std::chrono::milliseconds::max()});
    group->monitored_barrier({.timeout = std::chrono::milliseconds::max()});
    reduce(*group);
  });
}

TEST(Rank0Section, ThatIsTooLongTimesOutAndTellsWhatRankZeroDoes) {
  const Gate given_up;
  run_ranks(2, [&](const Group& group) {
    try {
      group->rank0_section([&] { given_up.pass(); }, {.timeout = 1s});
      EXPECT_EQ(group->rank(), 0);
      reduce(*group);  // where rank 0 has not heard of it before
      ADD_FAILURE() << "no exception";
    } catch (const TimeoutError& error) {
      EXPECT_TRUE(contains(error.what(), "timed out after 1.0 s: rank 0 is in \"rank0_section\" since "));
      EXPECT_TRUE(contains(error.what(), "give rank0_section() a longer timeout, or less to do"));
      EXPECT_TRUE(contains(error.what(), "Gate::pass"));
      if (group->rank() == 1) given_up.open();
    }
  });
}

// Fault R55.
TEST(Rank0Section, WhoseRankIsKilledEndsTheOthersWithItsName) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    ProcessGroupOptions options;
    options.environment = environment;
    const auto group = init_process_group(options);
    const auto start = Clock::now();
    try {
      group->rank0_section([] { ::raise(SIGKILL); });
      ADD_FAILURE() << "no exception";
    } catch (const PeerLostError& error) {
      EXPECT_EQ(error.peer(), 0);
      EXPECT_TRUE(contains(error.what(), "rank 0 died"));
    }
    EXPECT_LT(Clock::now() - start, 4s);
  });
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  EXPECT_TRUE(outcomes[1].succeeded()) << outcomes[1].output;
}

TEST(Rank0Section, RefusesCallsThatWouldNeverEnd) {
  run_ranks(2, [](const Group& group) {
    const auto refused = [&](const std::function<void()>& call) {
      group->rank0_section([&] { EXPECT_THROW(call(), std::logic_error); });
    };
    auto tensor = at::ones({4});
    refused([&] { group->barrier(); });
    refused([&] { group->all_reduce(tensor); });
    refused([&] { group->monitored_barrier(); });
    refused([&] { group->rank0_section([] {}); });
    refused([&] { group->send(tensor, 1); });
    reduce(*group);
  });
}

TEST(Rank0Section, OfAWorldOfOneJustRuns) {
  const auto group = init_process_group({.environment = Environment{}});
  int runs = 0;
  group->rank0_section([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_THROW(group->rank0_section([] { throw std::domain_error("no"); }), std::domain_error);
}

TEST(Rank0Section, OfASubGroupIsRunByTheFirstOfIt) {
  run_ranks(3, [](const Group& group) {
    const auto part = group->new_group({1, 2});
    if (!part) return;
    int runs = 0;
    part->rank0_section([&] { ++runs; });
    EXPECT_EQ(runs, group->rank() == 1 ? 1 : 0);
    reduce(*part);
  });
}

TEST(Rank0Section, AgainstAMonitoredBarrierIsAMismatch) {
  run_ranks(2, [](const Group& group) {
    try {
      if (group->rank() == 0)
        group->monitored_barrier();
      else
        group->rank0_section([] {});
      ADD_FAILURE() << "no exception";
    } catch (const CallMismatchError& error) {
      EXPECT_TRUE(contains(error.what(), "rank 1: rank0_section #1"));
    }
  });
}

}  // namespace
}  // namespace ddp::testing
