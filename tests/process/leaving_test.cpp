// Ranks leave in every order and in every way, without an error text and with exit code 0.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <memory>

#include "ddp/process_group.hpp"
#include "ddp/run.hpp"
#include "support/ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

constexpr int kWorld = 3;

enum class Way { shutdown, destructor, exit_with_live_group, exit_after_destruction, run, run_and_shutdown };
constexpr std::array kWays{Way::shutdown, Way::destructor,      Way::exit_with_live_group, Way::exit_after_destruction,
                           Way::run,      Way::run_and_shutdown};

Group join(const Environment& environment) {
  ::setenv("DDP_LOG_LEVEL", "warn", 1);
  ProcessGroupOptions options;
  options.environment = environment;
  options.timeout = 20s;
  auto group = init_process_group(options);
  auto tensor = at::ones({1000});
  for (int i = 0; i < 5; ++i) group->all_reduce(tensor);
  return group;
}

Group& static_group() {
  static Group group;  // made before the group's exit handler, so destroyed after it
  return group;
}

void leave(Way way, const Environment& environment, const std::function<void(ProcessGroup&)>& when) {
  if (way == Way::run || way == Way::run_and_shutdown) {
    std::exit(run([&] {
      const auto group = join(environment);
      when(*group);
      if (way == Way::run_and_shutdown) group->shutdown();
    }));
  }
  if (way == Way::exit_with_live_group) {
    static_group() = join(environment);
    when(*static_group());
    std::exit(0);
  }
  auto group = join(environment);
  when(*group);
  if (way == Way::shutdown) group->shutdown();
  group.reset();
  if (way == Way::exit_after_destruction) std::exit(0);
}

constexpr std::array<int, kWorld> kAtOnce{0, 0, 0};

/// One hundred and eight runs in all: places of the ranks, perhaps with a call that nobody has waited for, times kWays.
class Leaving : public ::testing::TestWithParam<std::tuple<std::array<int, kWorld>, bool>> {};
std::vector<std::array<int, kWorld>> orders() {
  std::vector<std::array<int, kWorld>> all;
  std::array<int, kWorld> order{0, 1, 2};
  do {
    all.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  all.insert(all.end(), 3, kAtOnce);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Orders, Leaving, ::testing::Combine(::testing::ValuesIn(orders()), ::testing::Bool()));

// Place i of the order begins to leave once place i - 1 has begun.
TEST_P(Leaving, InThisOrderIsSilentWhicheverWayIsTaken) {
  const auto [order, is_call_pending] = GetParam();
  for (const auto way : kWays) {
    std::array<Gate, kWorld> turns;
    RanksOptions options;
    options.run_exit_handlers = true;
    const auto outcomes = observe_ranks(
        kWorld,
        [&, order = order, is_call_pending = is_call_pending](const Environment& environment) {
          const auto place =
              static_cast<std::size_t>(std::find(order.begin(), order.end(), environment.rank) - order.begin());
          leave(way, environment, [&](ProcessGroup& group) {
            auto tensor = at::ones({1 << 18});
            if (is_call_pending) static_cast<void>(group.all_reduce_async(tensor));
            if (order == kAtOnce) return;
            if (place > 0) turns[place].pass();
            if (place + 1 < order.size()) turns[place + 1].open();
          });
        },
        options);
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome.exit_code, 0) << "way " << static_cast<int>(way) << ", rank " << outcome.rank << ": "
                                      << outcome.ending();
      EXPECT_EQ(outcome.output, "") << "way " << static_cast<int>(way) << ", rank " << outcome.rank;
    }
  }
}

TEST(LeavingProgram, ReturnsFromMainWithoutAWord) {
  const auto outcomes = observe_ranks(kWorld, [](const Environment& environment) {
    ::setenv("DDP_LOG_LEVEL", "warn", 1);
    become_program(environment, LEAVING_PROGRAM);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.ending();
    EXPECT_EQ(outcome.output, "");
  }
}

TEST(LeavingProgram, MayLeaveAtOnceWithoutASingleCall) {
  for (int round = 0; round < 5; ++round) {
    run_ranks(4, [](const Group&) {});
  }
}

TEST(LeavingProgram, RankZeroStaysOnlySecondsForARankThatDoesNotLeave) {
  const Gate rank_zero_has_left;
  const auto outcomes = observe_ranks(2, [&](const Environment& environment) {
    const auto group = join(environment);
    if (environment.rank == 1) return rank_zero_has_left.pass();
    const auto start = std::chrono::steady_clock::now();
    group->shutdown();
    EXPECT_LT(std::chrono::steady_clock::now() - start, 8s);
    rank_zero_has_left.open();
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(LeavingProgram, AfterShutdownACollectiveIsALogicError) {
  run_ranks(2, [](const Group& group) {
    group->barrier();
    group->shutdown();
    EXPECT_THROW(group->barrier(), std::logic_error);
    group->shutdown();
  });
}

TEST(LeavingProgram, PendingCallsEndBeforeShutdownReturns) {
  run_ranks(2, [](const Group& group) {
    auto tensor = at::ones({1 << 20});
    const auto work = group->all_reduce_async(tensor);
    group->shutdown();
    EXPECT_TRUE(work.is_completed());
    work.wait();
    EXPECT_EQ(tensor[0].item<float>(), 2);
  });
}

}  // namespace
}  // namespace ddp::testing
