#include "reduce/bucket_plan.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace ddp {
namespace {

// From last to first, as gradients arrive.
BucketPlan plan_backwards(const std::vector<ParameterLayout>& parameters, const BucketCaps& caps) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return plan_buckets(parameters, caps, order);
}

ParameterLayout floats(std::int64_t elements) { return {elements, c10::kFloat, c10::kCPU}; }

TEST(BucketPlan, TakesParametersInTheOrderGiven) {
  EXPECT_EQ(plan_buckets({floats(1), floats(1), floats(1)}, {1000, 1000}, {1, 2, 0}), (BucketPlan{{1, 2, 0}}));
}

TEST(BucketPlan, ClosesABucketOnceTheCapIsReached) {
  EXPECT_EQ(plan_backwards({floats(10), floats(10), floats(10), floats(10)}, {80, 80}), (BucketPlan{{3, 2}, {1, 0}}));
}

TEST(BucketPlan, GivesTheFirstBucketItsOwnCap) {
  EXPECT_EQ(plan_backwards({floats(10), floats(10), floats(10), floats(10)}, {4, 100}), (BucketPlan{{3}, {2, 1, 0}}));
}

TEST(BucketPlan, GivesAParameterLargerThanTheCapItsOwnBucket) {
  EXPECT_EQ(plan_backwards({floats(1), floats(1000), floats(1)}, {4, 8}), (BucketPlan{{2}, {1}, {0}}));
}

TEST(BucketPlan, KeepsDtypesAndDevicesApartAndOrdersBucketsByTheirLastMember) {
  const ParameterLayout doubles{10, c10::kDouble, c10::kCPU};
  const ParameterLayout elsewhere{10, c10::kFloat, c10::Device(c10::kCUDA, 0)};
  const auto plan = plan_backwards({floats(10), doubles, elsewhere, floats(10), doubles}, {1000, 1000});
  EXPECT_EQ(plan, (BucketPlan{{2}, {4, 1}, {3, 0}}));
}

TEST(BucketPlan, CountsBytesBeyondTwoGigabytes) {
  const std::int64_t huge = 3'000'000'000;
  EXPECT_EQ(plan_backwards({floats(1), floats(huge), floats(huge)}, {huge * 4 + 1, huge * 4 + 1}),
            (BucketPlan{{2, 1}, {0}}));
}

TEST(BucketPlan, PutsEveryParameterInExactlyOneBucket) {
  std::vector<ParameterLayout> layouts;
  for (std::int64_t i = 0; i < 100; ++i) layouts.push_back({i * 37 % 11, i % 3 ? c10::kFloat : c10::kHalf, c10::kCPU});
  std::vector<int> seen(layouts.size(), 0);
  for (const auto& bucket : plan_backwards(layouts, {16, 64}))
    for (const auto index : bucket) ++seen[index];
  EXPECT_EQ(seen, std::vector<int>(layouts.size(), 1));
}

TEST(BucketPlan, IsEmptyWithoutParameters) { EXPECT_TRUE(plan_backwards({}, {}).empty()); }

TEST(BucketPlan, LeavesOutWhatTheOrderLeavesOut) {
  EXPECT_EQ(plan_buckets({floats(1), floats(1), floats(1)}, {1, 1}, {2, 0}), (BucketPlan{{2}, {0}}));
}

TEST(LaunchDelay, IsHowMuchOfABackwardHasToPassBeforeTheAverageByteLeaves) {
  const std::vector<ParameterLayout> four{floats(1), floats(1), floats(1), floats(1)};
  EXPECT_DOUBLE_EQ(launch_delay({{3}, {2}, {1}, {0}}, four, {3, 2, 1, 0}), (1 + 2 + 3 + 4) / 16.0);
  EXPECT_DOUBLE_EQ(launch_delay({{3, 2, 1, 0}}, four, {3, 2, 1, 0}), 1);
  // The first bucket waits for the last gradient, and the others wait behind it.
  EXPECT_DOUBLE_EQ(launch_delay({{3}, {2}, {1}, {0}}, four, {0, 1, 2, 3}), 1);
}

TEST(LaunchDelay, DoesNotCountParametersWithoutElements) {
  EXPECT_DOUBLE_EQ(launch_delay({{2}, {1}, {0}}, {floats(1), floats(1), floats(0)}, {1, 0, 2}), (1 + 2) / 4.0);
}

TEST(LaunchDelay, IsOneWhereThereIsNothingToSend) { EXPECT_DOUBLE_EQ(launch_delay({{0}}, {floats(0)}, {0}), 1); }

}  // namespace
}  // namespace ddp
