#include "ddp/throughput.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "ddp/process_group.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = Throughput::Seconds;

void spend(Seconds time) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
  while (Clock::now() < end) {
  }
}

TEST(Throughput, ClockStandsWhileAnyPauseLives) {
  const auto start = Clock::now();
  Throughput meter;
  spend(Seconds(0.02));
  {
    const auto outer = meter.pause();
    const auto at_first = meter.elapsed();
    {
      const auto inner = meter.pause();
      spend(Seconds(0.2));
    }
    EXPECT_EQ(meter.elapsed(), at_first);
    spend(Seconds(0.05));
  }
  spend(Seconds(0.02));
  EXPECT_GE(meter.elapsed(), Seconds(0.04));
  EXPECT_LE(meter.elapsed(), Seconds(Clock::now() - start) - Seconds(0.25));
}

TEST(Throughput, IsSamplesOverTime) {
  const auto group = init_process_group({.environment = Environment{}});
  Throughput meter;
  meter.add(30);
  meter.add(12);
  spend(Seconds(0.01));
  const auto before = meter.elapsed().count();
  const double rate = meter.compute(*group);
  EXPECT_LE(rate, 42 / before);
  EXPECT_GE(rate, 42 / meter.elapsed().count());
  meter.reset();
  EXPECT_EQ(meter.samples(), 0);
  EXPECT_LT(meter.elapsed().count(), before);
  EXPECT_EQ(meter.compute(*group), 0);
}

TEST(ThroughputAlone, LeavesTheFirstStepsOut) {
  const auto group = init_process_group({.environment = Environment{}});
  int steps = 0;
  const double rate = throughput_alone(*group,
                                       [&] {
                                         spend(Seconds(++steps <= 2 ? 0.1 : 0.001));
                                         return 10;
                                       },
                                       {.warmup = 2, .steps = 5});
  EXPECT_EQ(steps, 7);
  EXPECT_LE(rate, 10 / 0.001);
  EXPECT_GT(rate, 7 * 10 / 0.2) << "the first steps count";
}

TEST(ScalingEfficiency, IsTheShareOfWhatRanksWithoutCostWouldReach) {
  const auto group = init_process_group({.environment = Environment{}});
  EXPECT_DOUBLE_EQ(scaling_efficiency(90, 100, *group), 0.9);
}

}  // namespace
}  // namespace ddp
