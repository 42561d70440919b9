// Runs that are cut off inside an epoch and resumed, with loaders.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "numbers.hpp"

namespace ddp {
namespace {

using testing::all_of;
using testing::Indices;
using testing::Numbers;
using testing::tail;
using torch::data::DataLoaderOptions;

/// One run out of several that share an epoch.
struct Part {
  int ranks = 1;
  std::size_t batch_size = 1;
  std::size_t batches = 0;  ///< that each rank receives before the run is cut off, at most
};

struct Epoch {
  std::size_t samples = 0;
  bool pad = false;
  bool drop_last = false;
  std::size_t workers = 0;
  std::map<std::size_t, int> times = {};  ///< how often each sample came
  DistributedSamplerState state = {.seed = 9, .epoch = 4};
  bool is_over = false;

  DistributedSampler sampler_of(const Part& part, int rank) const {
    return DistributedSampler(samples, {.num_replicas = part.ranks, .rank = rank, .drop_last = drop_last, .pad = pad});
  }

  /// All ranks go on from `state`; what rank 0 then saves is the state of the next part.
  void run(const Part& part) {
    const auto resumed_from = state;
    for (int rank = 0; rank < part.ranks; ++rank) {
      auto sampler = sampler_of(part, rank);
      const auto loader = make_data_loader(Numbers(samples), sampler, options(part));
      sampler.restore(resumed_from);
      std::size_t batches = 0;
      for (auto& batch : *loader) {
        for (const auto sample : batch) ++times[sample];
        if (++batches == part.batches) break;
      }
      if (rank > 0) continue;
      state = sampler.state();
      is_over = state.epoch == 5;
    }
  }

  DataLoaderOptions options(const Part& part) const { return DataLoaderOptions(part.batch_size).workers(workers); }
};

std::string text_of(const std::vector<Part>& parts) {
  std::ostringstream text;
  for (const auto& part : parts)
    text << part.ranks << " ranks, batches of " << part.batch_size << ", " << part.batches << " of them; ";
  return text.str();
}

/// Cuts an epoch into parts at random and goes through it.
void expect_no_sample_lost_or_repeated(Epoch epoch, std::mt19937& random) {
  const auto below = [&](std::size_t limit) { return random() % limit; };
  std::vector<Part> parts;
  std::size_t most_padding = 0;
  while (!epoch.is_over) {
    parts.push_back({static_cast<int>(1 + below(5)), 1 + below(4), 1 + below(6)});
    epoch.run(parts.back());
    most_padding += static_cast<std::size_t>(parts.back().ranks - 1);
    ASSERT_LT(parts.size(), 200u) << "no end: " << text_of(parts);
  }
  std::size_t given = 0;
  for (const auto& [sample, times] : epoch.times) given += static_cast<std::size_t>(times);
  const auto dropped = epoch.samples - epoch.times.size();
  const auto most_dropped = epoch.drop_last ? static_cast<std::size_t>(parts.back().ranks - 1) : 0;
  ASSERT_LE(dropped, most_dropped) << "lost, of " << epoch.samples << "; " << text_of(parts);
  ASSERT_LE(given, epoch.times.size() + (epoch.pad && !epoch.drop_last ? most_padding : 0))
      << "repeated, of " << epoch.samples << "; " << text_of(parts);
}

TEST(SamplerState, LosesAndRepeatsNoSampleOverAnyNumberOfResumesWithAnyRanks) {
  std::mt19937 random(1);  // NOLINT: the same each time
  for (std::size_t samples = 0; samples < 60; ++samples) {
    for (int repetition = 0; repetition < 5; ++repetition) {
      for (const bool pad : {false, true}) expect_no_sample_lost_or_repeated({.samples = samples, .pad = pad}, random);
      expect_no_sample_lost_or_repeated({.samples = samples, .pad = true, .drop_last = true}, random);
    }
  }
}

TEST(SamplerState, LosesAndRepeatsNoSampleWithLoaderWorkers) {
  std::mt19937 random(2);  // NOLINT: the same each time
  for (const std::size_t samples : {1, 8, 31, 59})
    expect_no_sample_lost_or_repeated({.samples = samples, .workers = 2}, random);
}

TEST(SamplerState, SavedAtTheLastBatchLeavesNothingOfItsEpoch) {
  for (const bool drop_last : {false, true}) {
    auto sampler = testing::sampler_of(46);
    DistributedSamplerState saved;
    const auto options = DataLoaderOptions(4).drop_last(drop_last);
    const auto loader = make_data_loader(Numbers(46), sampler, options);
    for ([[maybe_unused]] auto& batch : *loader) saved = sampler.state();
    EXPECT_EQ(saved.epoch, 0u);

    auto resumed = testing::sampler_of(46);
    resumed.restore(saved);
    const auto resumed_loader = make_data_loader(Numbers(46), resumed, options);
    EXPECT_TRUE(all_of(*resumed_loader).empty());
    EXPECT_EQ(resumed_loader->step(), loader->batches());
    EXPECT_EQ(resumed.state().epoch, 1u);
    EXPECT_FALSE(all_of(*resumed_loader).empty());
    EXPECT_EQ(resumed.epoch(), 1u);
  }
}

TEST(SamplerState, OfAnEpochThatIsChosenInsideAPassIsItsStart) {
  auto sampler = testing::sampler_of(46);
  const auto loader = make_data_loader(Numbers(46), sampler, 4);
  const auto first_epoch = sampler.indices();
  Indices seen;
  for (auto& batch : *loader) {
    seen.insert(seen.end(), batch.begin(), batch.end());
    sampler.set_epoch(5);
    EXPECT_EQ(sampler.state().epoch, 5u);
    EXPECT_EQ(sampler.state().position, 0u);
  }
  EXPECT_EQ(seen, first_epoch) << "the pass under way stays as it is";
  EXPECT_EQ(sampler.state().epoch, 5u);
  EXPECT_EQ(all_of(*loader), sampler.indices());
}

TEST(SamplerState, ThatIsRestoredInsideAPassIsWhereTheNextOneBegins) {
  auto sampler = testing::sampler_of(46);
  const auto loader = make_data_loader(Numbers(46), sampler, 4);
  const DistributedSamplerState saved{
      .seed = 3, .epoch = 7, .position = 8, .dataset_size = 46, .num_replicas = 2, .offset = 0};
  for ([[maybe_unused]] auto& batch : *loader) {
    if (loader->step() == 2) sampler.restore(saved);
  }
  EXPECT_EQ(sampler.state().epoch, 7u);
  EXPECT_EQ(sampler.state().position, 8u);
  const auto rest = all_of(*loader);
  EXPECT_EQ(rest, tail(sampler.indices(), 8));
}

}  // namespace
}  // namespace ddp
