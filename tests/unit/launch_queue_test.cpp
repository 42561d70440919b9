#include "reduce/launch_queue.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace ddp {
namespace {

std::vector<std::size_t> pop_all(LaunchQueue& queue) {
  std::vector<std::size_t> launched;
  while (const auto bucket = queue.pop()) launched.push_back(*bucket);
  return launched;
}

using Buckets = std::vector<std::size_t>;

TEST(LaunchQueue, LaunchesInPlanOrderWhateverTheOrderOfArrival) {
  LaunchQueue queue({0, 0, 1, 2, 3}, 4);
  queue.start({1, 1, 1, 1, 1});
  EXPECT_TRUE(queue.arrive(3));
  EXPECT_FALSE(queue.arrive(0));
  EXPECT_EQ(pop_all(queue), Buckets{});
  EXPECT_TRUE(queue.arrive(1));
  EXPECT_EQ(pop_all(queue), Buckets{0});
  EXPECT_TRUE(queue.arrive(2));
  EXPECT_EQ(pop_all(queue), (Buckets{1, 2}));
  EXPECT_TRUE(queue.has_left(3));
  EXPECT_FALSE(queue.has_left(4));
  EXPECT_EQ(pop_all(queue), Buckets{});
}

TEST(LaunchQueue, KeepsTheLastBucketUntilItIsClosed) {
  LaunchQueue queue({0}, 1);
  queue.start({1});
  EXPECT_TRUE(queue.arrive(0));
  EXPECT_EQ(pop_all(queue), Buckets{});
  EXPECT_FALSE(queue.is_closed());
  queue.close();
  EXPECT_EQ(pop_all(queue), Buckets{0});
  EXPECT_TRUE(queue.is_closed());
}

TEST(LaunchQueue, LetsAllLeaveOnceItIsClosed) {
  LaunchQueue queue({0, 1, 2}, 3);
  queue.start({1, 1, 1});
  queue.arrive(1);
  queue.close();
  EXPECT_EQ(pop_all(queue), (Buckets{0, 1, 2}));
}

TEST(LaunchQueue, WaitsForAsManyArrivalsAsAreExpected) {
  LaunchQueue queue({0, 1}, 2);
  queue.start({3, 1});
  EXPECT_FALSE(queue.arrive(0));
  EXPECT_FALSE(queue.arrive(0));
  EXPECT_EQ(pop_all(queue), Buckets{});
  EXPECT_TRUE(queue.arrive(0));
  EXPECT_EQ(pop_all(queue), Buckets{0});
  EXPECT_FALSE(queue.arrive(0));
  EXPECT_EQ(queue.arrivals(0), 4u);
}

TEST(LaunchQueue, DoesNotWaitForWhatIsForgoneOrNotExpected) {
  LaunchQueue queue({0, 1, 2}, 3);
  queue.start({0, 1, 1});
  EXPECT_EQ(pop_all(queue), Buckets{0});
  queue.forgo(1);
  queue.forgo(1);
  EXPECT_EQ(pop_all(queue), Buckets{1});
  EXPECT_FALSE(queue.arrive(1));
  EXPECT_EQ(queue.arrivals(1), 1u);
}

TEST(LaunchQueue, CountsGradientsThatTravelInNoBucket) {
  LaunchQueue queue({LaunchQueue::kNoBucket, 0}, 1);
  queue.start({1, 1});
  EXPECT_FALSE(queue.arrive(0));
  EXPECT_EQ(queue.arrivals(0), 1u);
  EXPECT_FALSE(queue.has_left(0));
}

TEST(LaunchQueue, ForgetsTheRoundWhenItStartsAgain) {
  LaunchQueue queue({0, 1}, 2);
  queue.start({1, 1});
  queue.arrive(0);
  queue.close();
  EXPECT_EQ(pop_all(queue).size(), 2u);
  queue.start({1, 1});
  EXPECT_EQ(queue.arrivals(0), 0u);
  EXPECT_EQ(pop_all(queue), Buckets{});
  queue.arrive(0);
  EXPECT_EQ(pop_all(queue), Buckets{0});
}

// Each thread writes its gradient before it says so, and whoever gets the bucket reads all of them: ThreadSanitizer
// sees if one of them could be missed.
TEST(LaunchQueue, ShowsWhoeverLaunchesABucketAllThatItsGradientsWrote) {
  constexpr std::size_t kThreads = 4, kEach = 8, kBuckets = 4;
  std::vector<std::size_t> bucket_of;
  for (std::size_t i = 0; i < kThreads * kEach; ++i) bucket_of.push_back(i % kBuckets);
  LaunchQueue queue(bucket_of, kBuckets);
  for (int round = 1; round <= 200; ++round) {
    std::vector<int> slots(bucket_of.size(), 0);
    std::vector<std::atomic<int>> launches(kBuckets);
    queue.start(std::vector<std::uint32_t>(bucket_of.size(), 1));
    const auto launch = [&](std::size_t bucket) {
      ++launches[bucket];
      for (std::size_t i = bucket; i < slots.size(); i += kBuckets) EXPECT_EQ(slots[i], round);
    };
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = t * kEach; i < (t + 1) * kEach; ++i) {
          slots[i] = round;
          queue.arrive(i);
          while (const auto bucket = queue.pop()) launch(*bucket);
        }
      });
    for (auto& thread : threads) thread.join();
    queue.close();
    while (const auto bucket = queue.pop()) launch(*bucket);
    for (const auto& count : launches) EXPECT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace ddp
