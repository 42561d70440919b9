#include "reduce/launch_queue.hpp"

#include <gtest/gtest.h>

namespace ddp {
namespace {

std::vector<std::size_t> pop_all(LaunchQueue& queue) {
  std::vector<std::size_t> launched;
  while (const auto bucket = queue.pop()) launched.push_back(*bucket);
  return launched;
}

TEST(LaunchQueue, LaunchesInPlanOrderWhateverTheOrderOfFilling) {
  LaunchQueue queue(4);
  queue.mark_full(2);
  EXPECT_TRUE(pop_all(queue).empty());
  queue.mark_full(0);
  EXPECT_EQ(pop_all(queue), (std::vector<std::size_t>{0}));
  queue.mark_full(1);
  EXPECT_EQ(pop_all(queue), (std::vector<std::size_t>{1, 2}));
  EXPECT_FALSE(queue.is_drained());
  queue.mark_full(3);
  EXPECT_EQ(pop_all(queue), (std::vector<std::size_t>{3}));
  EXPECT_TRUE(queue.is_drained());
}

TEST(LaunchQueue, LaunchesABucketOnce) {
  LaunchQueue queue(1);
  queue.mark_full(0);
  EXPECT_EQ(pop_all(queue).size(), 1u);
  queue.mark_full(0);
  EXPECT_TRUE(pop_all(queue).empty());
}

TEST(LaunchQueue, ForgetsTheRoundOnReset) {
  LaunchQueue queue(2);
  queue.mark_full(0);
  queue.mark_full(1);
  EXPECT_EQ(pop_all(queue).size(), 2u);
  queue.reset();
  EXPECT_TRUE(pop_all(queue).empty());
  queue.mark_full(0);
  EXPECT_EQ(pop_all(queue), (std::vector<std::size_t>{0}));
}

}  // namespace
}  // namespace ddp
