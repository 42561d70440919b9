#include "ddp/throughput.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <stdexcept>

#include "ddp/error.hpp"
#include "ddp/process_group.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

using ::ddp::testing::contains;
using ::ddp::testing::error_of;
using ::ddp::testing::run_ranks;
using ::ddp::testing::same_on_all_ranks;
using Clock = std::chrono::steady_clock;
using Group = std::shared_ptr<ProcessGroup>;

void spend(double seconds) {
  const auto start = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
  }
}

TEST(ThroughputRanks, CountAllSamplesInTheTimeOfTheSlowest) {
  run_ranks(3, [](const Group& group) {
    Throughput meter;
    meter.add(100 * (group->rank() + 1));
    if (group->rank() == 1) spend(0.2);
    const auto own = meter.elapsed().count();
    const double rate = meter.compute(*group);
    EXPECT_TRUE(same_on_all_ranks(*group, torch::tensor(rate, torch::kDouble)));
    EXPECT_LE(rate, 600 / 0.2);
    EXPECT_TRUE(group->rank() != 1 || rate <= 600 / own) << rate;
    EXPECT_GT(rate, 600 / 5.0);
  });
}

TEST(ThroughputRanks, RankZeroAloneTakesTheStepsAndAllKnowTheRate) {
  run_ranks(3, [](const Group& group) {
    int steps = 0;
    const double alone = throughput_alone(*group, [&] {
      ++steps;
      spend(0.001);
      return 8;
    });
    EXPECT_EQ(steps, group->rank() == 0 ? 23 : 0);
    EXPECT_TRUE(same_on_all_ranks(*group, torch::tensor(alone, torch::kDouble)));
    EXPECT_LE(alone, 8 / 0.001);
    EXPECT_GT(alone, 0);
    EXPECT_DOUBLE_EQ(scaling_efficiency(1.5 * alone, alone, *group), 0.5);
  });
}

TEST(ThroughputRanks, AStepThatThrowsIsHeardOfByAll) {
  run_ranks(2, [](const Group& group) {
    const auto text = error_of(
        [&] { throughput_alone(*group, []() -> std::int64_t { throw std::runtime_error("no such batch"); }); });
    EXPECT_TRUE(contains(text, "no such batch"));
    auto sum = torch::ones(1);
    group->all_reduce(sum);
    EXPECT_EQ(sum.item<float>(), 2);
  });
}

}  // namespace
}  // namespace ddp
