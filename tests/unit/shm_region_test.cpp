#include "comm/shm/region.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ddp::comm::shm {
namespace {

constexpr std::uint64_t kGranule = 4096;

/// The same promises kept granule by granule.
class Naive {
 public:
  Naive(std::uint64_t begin, std::size_t granules) : begin_(begin), taken_(granules, false) {}

  /// Where a range has to be taken: the first of the shortest free runs that suffice.
  std::optional<std::uint64_t> place(std::size_t granules) const {
    std::optional<std::size_t> best;
    std::size_t shortest = std::numeric_limits<std::size_t>::max();
    for (std::size_t at = 0; at < taken_.size(); ++at) {
      const std::size_t run = run_at(at);
      if (run >= granules && run < shortest) {
        best = at;
        shortest = run;
      }
      at += run;
    }
    if (!best) return std::nullopt;
    return begin_ + *best * kGranule;
  }
  void set(std::uint64_t offset, std::size_t granules, bool taken) {
    for (std::size_t i = 0; i < granules; ++i) {
      const auto at = (offset - begin_) / kGranule + i;
      ASSERT_NE(taken_.at(at), taken) << "granule " << at;
      taken_.at(at) = taken;
    }
  }

 private:
  std::size_t run_at(std::size_t at) const {
    const auto from = taken_.begin() + static_cast<std::ptrdiff_t>(at);
    return static_cast<std::size_t>(std::find(from, taken_.end(), true) - from);
  }

  std::uint64_t begin_;
  std::vector<bool> taken_;
};

TEST(Region, AgreesWithANaiveOneAndIsWholeAtTheEnd) {
  constexpr std::uint64_t begin = 7 * kGranule;
  constexpr std::size_t granules = 200;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Region region(begin, granules * kGranule, kGranule);
    Naive naive(begin, granules);
    std::vector<std::pair<std::uint64_t, std::size_t>> live;
    for (int round = 0; round < 1000; ++round) {
      if (live.empty() || random() % 5 < 3) {
        const std::size_t wanted = 1 + random() % (random() % 10 == 0 ? 150 : 12);
        const auto offset = region.take(wanted * kGranule - random() % kGranule);
        ASSERT_EQ(offset, naive.place(wanted)) << "seed " << seed << " round " << round;
        if (!offset) continue;
        naive.set(*offset, wanted, true);
        EXPECT_EQ(region.size_of(*offset), wanted * kGranule);
        live.emplace_back(*offset, wanted);
      } else {
        std::swap(live[random() % live.size()], live.back());
        naive.set(live.back().first, live.back().second, false);
        region.give_back(live.back().first);
        live.pop_back();
      }
      if (HasFatalFailure()) return;
    }
    for (const auto& [offset, size] : live) region.give_back(offset);
    EXPECT_EQ(region.taken_bytes(), 0u);
    EXPECT_EQ(region.take(granules * kGranule), begin) << "seed " << seed;
  }
}

TEST(Region, GivesNothingWhenItIsFull) {
  Region region(0, 4 * kGranule, kGranule);
  EXPECT_EQ(region.take(5 * kGranule), std::nullopt);
  EXPECT_EQ(region.take(3 * kGranule + 1), 0u);
  EXPECT_EQ(region.take(1), std::nullopt);
  region.give_back(0);
  EXPECT_EQ(region.take(1), 0u);
}

TEST(Region, TakesAGranuleForNothing) {
  Region region(0, 2 * kGranule, kGranule);
  EXPECT_EQ(region.take(0), 0u);
  EXPECT_EQ(region.take(0), kGranule);
  EXPECT_EQ(region.taken_bytes(), 2 * kGranule);
}

TEST(Region, LooksForTheShortestRangeThatSuffices) {
  Region region(0, 100 * kGranule, kGranule);
  ASSERT_EQ(region.take(10 * kGranule), 0u);
  ASSERT_EQ(region.take(kGranule), 10 * kGranule);
  ASSERT_EQ(region.take(5 * kGranule), 11 * kGranule);
  ASSERT_EQ(region.take(kGranule), 16 * kGranule);
  region.give_back(0);
  region.give_back(11 * kGranule);
  EXPECT_EQ(region.take(5 * kGranule), 11 * kGranule);
}

TEST(Region, CountsBeyond32And40Bits) {
  constexpr std::uint64_t size = std::uint64_t{1} << 40;
  Region region(3 * size, size, kGranule);
  EXPECT_EQ(region.take(size - 1), 3 * size);
  EXPECT_EQ(region.size_of(3 * size), size);
  region.give_back(3 * size);
  EXPECT_EQ(region.take((std::uint64_t{1} << 32) + 1), 3 * size);
  EXPECT_EQ(region.take(1), 3 * size + (std::uint64_t{1} << 32) + kGranule);
}

TEST(Region, RefusesSizesThatWrapAround) {
  Region region(0, 4 * kGranule, kGranule);
  for (std::uint64_t less = 0; less < 2 * kGranule; less += 511) {
    EXPECT_EQ(region.take(std::numeric_limits<std::uint64_t>::max() - less), std::nullopt);
  }
  EXPECT_EQ(region.taken_bytes(), 0u);
}

TEST(Region, TakesBackOnlyWhatItGave) {
  Region region(0, 4 * kGranule, kGranule);
  EXPECT_THROW(region.give_back(0), std::logic_error);
  ASSERT_EQ(region.take(2 * kGranule), 0u);
  EXPECT_THROW(region.give_back(kGranule), std::logic_error);
  region.give_back(0);
  EXPECT_THROW(region.give_back(0), std::logic_error);
  EXPECT_THROW(region.size_of(0), std::logic_error);
  EXPECT_EQ(region.take(4 * kGranule), 0u);
}

TEST(Region, ServesThreadsAtOnce) {
  constexpr int threads = 4;
  constexpr std::size_t granules = 64;
  Region region(0, granules * kGranule, kGranule);
  std::vector<std::atomic<int>> owners(granules);
  std::atomic<int> clashes{0};
  std::vector<std::thread> workers;
  for (int me = 1; me <= threads; ++me) {
    workers.emplace_back([&, me] {
      std::mt19937 random(static_cast<unsigned>(me));
      for (int round = 0; round < 2000; ++round) {
        const std::size_t wanted = 1 + random() % 16;
        const auto offset = region.take(wanted * kGranule);
        if (!offset) continue;
        for (std::size_t i = 0; i < wanted; ++i) clashes += owners[*offset / kGranule + i].exchange(me) != 0;
        for (std::size_t i = 0; i < wanted; ++i) owners[*offset / kGranule + i] = 0;
        region.give_back(*offset);
      }
    });
  }
  for (auto& worker : workers) worker.join();
  EXPECT_EQ(clashes, 0);
  EXPECT_EQ(region.take(granules * kGranule), 0u);
}

}  // namespace
}  // namespace ddp::comm::shm
