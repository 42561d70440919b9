#include "ddp/distributed_sampler.hpp"

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/serialize.h>

#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "ddp/error.hpp"

namespace ddp {
namespace {

using Indices = std::vector<std::size_t>;

/// All that next() gives, in batches.
std::vector<Indices> batches_of(DistributedSampler& sampler, std::size_t batch_size) {
  std::vector<Indices> batches;
  while (auto batch = sampler.next(batch_size)) batches.push_back(*batch);
  return batches;
}

DistributedSampler sampler_of(std::size_t size, int num_replicas, int rank, bool drop_last = false) {
  return DistributedSampler(size, {.num_replicas = num_replicas, .rank = rank, .seed = 3, .drop_last = drop_last});
}

/// Written by Python: list(DistributedSampler(range(10), 3, rank, seed=42)) after set_epoch(1).
TEST(DistributedSampler, GivesTheIndicesOfPythonsClass) {
  DistributedSampler sampler(10, {.num_replicas = 3, .rank = 1, .seed = 42});
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.indices_of(0), (Indices{8, 0, 6, 3}));
  EXPECT_EQ(sampler.indices(), (Indices{4, 5, 7, 8}));
  EXPECT_EQ(sampler.indices_of(2), (Indices{9, 1, 2, 4}));
}

TEST(DistributedSampler, WrapsAsOftenAsASmallDatasetNeeds) {
  const DistributedSampler sampler(2, {.num_replicas = 5, .shuffle = false});
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(sampler.indices_of(rank), Indices{static_cast<std::size_t>(rank % 2)});
}

TEST(DistributedSampler, CoversEverySampleWithEqualSharesUnlessItDropsTheTail) {
  for (const std::size_t size : {0, 1, 2, 3, 4, 7, 8, 9, 100}) {
    for (const int replicas : {1, 2, 3, 4, 7}) {
      for (const bool drop_last : {false, true}) {
        const auto sampler = sampler_of(size, replicas, 0, drop_last);
        std::multiset<std::size_t> seen;
        for (int rank = 0; rank < replicas; ++rank) {
          const auto share = sampler.indices_of(rank);
          EXPECT_EQ(share.size(), sampler.size());
          seen.insert(share.begin(), share.end());
        }
        const std::set<std::size_t> distinct(seen.begin(), seen.end());
        EXPECT_EQ(distinct.size(), drop_last ? size - size % static_cast<std::size_t>(replicas) : size);
        EXPECT_TRUE(distinct.empty() || *distinct.rbegin() < size);
        if (drop_last) {
          EXPECT_EQ(seen.size(), distinct.size()) << "a sample came twice";
        }
      }
    }
  }
}

TEST(DistributedSampler, GivesNoBatchOfAnEmptyDataset) {
  auto sampler = sampler_of(0, 2, 1);
  sampler.reset();
  EXPECT_EQ(sampler.next(4), std::nullopt);
  EXPECT_TRUE(sampler.indices().empty());
}

TEST(DistributedSampler, DropsOtherSamplesInOtherEpochs) {
  auto sampler = sampler_of(10, 4, 0, true);
  std::set<std::size_t> seen;
  for (std::size_t epoch = 0; epoch < 50; ++epoch) {
    sampler.set_epoch(epoch);
    for (int rank = 0; rank < 4; ++rank) {
      const auto share = sampler.indices_of(rank);
      seen.insert(share.begin(), share.end());
    }
  }
  EXPECT_EQ(seen.size(), 10u);
}

TEST(DistributedSampler, TellsItsCopiesOfANewEpoch) {
  auto sampler = sampler_of(100, 2, 0);
  auto copy = sampler;
  const auto before = copy.indices();
  sampler.set_epoch(1);
  EXPECT_EQ(copy.epoch(), 1u);
  EXPECT_NE(copy.indices(), before);
  EXPECT_EQ(copy.indices(), sampler.indices());
}

TEST(DistributedSampler, KeepsTheOrderOfThePassUnderWay) {
  auto sampler = sampler_of(100, 2, 0);
  const auto first_epoch = sampler.indices();
  sampler.reset();
  sampler.set_epoch(1);
  EXPECT_EQ(batches_of(sampler, 1000), std::vector<Indices>{first_epoch});
  sampler.reset();
  EXPECT_EQ(batches_of(sampler, 1000), std::vector<Indices>{sampler.indices()});
}

TEST(DistributedSampler, ContinuesWhereASavedOneWas) {
  auto saved = sampler_of(40, 2, 1);
  saved.set_epoch(7);
  saved.reset();
  saved.next(4);
  saved.next(4);
  std::stringstream file;
  torch::serialize::OutputArchive out;
  saved.save(out);
  out.save_to(file);
  const auto remaining = batches_of(saved, 4);

  DistributedSampler loaded(40, {.num_replicas = 2, .rank = 1, .seed = 99});
  torch::serialize::InputArchive in;
  in.load_from(file);
  loaded.load(in);
  EXPECT_EQ(loaded.position(), 8u);
  loaded.set_epoch(7);  // what a training loop does first
  loaded.reset();
  EXPECT_EQ(batches_of(loaded, 4), remaining);
  loaded.reset();
  EXPECT_EQ(batches_of(loaded, 4).size(), 5u) << "the pass after the restored one is a whole one";
}

TEST(DistributedSampler, StandsAtTheStartOfAnotherEpochThanTheSavedOne) {
  auto sampler = sampler_of(40, 2, 1);
  sampler.restore({.seed = 3, .epoch = 7, .position = 8, .dataset_size = 40, .num_replicas = 2});
  sampler.set_epoch(8);
  sampler.reset();
  EXPECT_EQ(batches_of(sampler, 1000), std::vector<Indices>{sampler.indices()});
}

TEST(DistributedSampler, HasNothingLeftAfterAPositionAtTheEndOfItsEpoch) {
  auto sampler = sampler_of(40, 2, 1);
  sampler.restore({.seed = 3, .epoch = 7, .position = 20, .dataset_size = 40, .num_replicas = 2});
  sampler.reset();
  EXPECT_TRUE(batches_of(sampler, 4).empty());
}

TEST(DistributedSampler, StandsAtTheStartOnceAPassIsOver) {
  auto sampler = sampler_of(40, 2, 1);
  sampler.reset();
  sampler.next(4);
  EXPECT_EQ(sampler.position(), 4u);
  batches_of(sampler, 4);
  EXPECT_EQ(sampler.position(), 0u);
}

TEST(DistributedSampler, RefusesAPositionOfOtherRanksOrOtherData) {
  auto sampler = sampler_of(40, 2, 1);
  const DistributedSamplerState fits{.seed = 5, .epoch = 7, .position = 8, .dataset_size = 40, .num_replicas = 2};
  auto other_ranks = fits;
  other_ranks.num_replicas = 4;
  auto other_data = fits;
  other_data.dataset_size = 41;
  auto beyond = fits;
  beyond.position = 21;
  for (const auto& state : {other_ranks, other_data, beyond}) {
    EXPECT_THROW(sampler.restore(state), CheckpointError);
    EXPECT_EQ(sampler.seed(), 3u) << "a refused state must change nothing";
  }
  other_ranks.position = 0;  // between epochs any number of ranks may go on
  sampler.restore(other_ranks);
  EXPECT_EQ(sampler.epoch(), 7u);
  EXPECT_EQ(sampler.seed(), 5u);
}

TEST(DistributedSampler, TakesANewSizeOfTheDataset) {
  auto sampler = sampler_of(40, 2, 0);
  sampler.reset(10);
  EXPECT_EQ(sampler.size(), 5u);
  EXPECT_EQ(batches_of(sampler, 1000), std::vector<Indices>{sampler_of(10, 2, 0).indices()});
}

TEST(DistributedSampler, RefusesARankThatIsNotAmongTheReplicas) {
  EXPECT_THROW(sampler_of(10, 2, 2), std::invalid_argument);
  EXPECT_THROW(sampler_of(10, 2, -1), std::invalid_argument);
  EXPECT_THROW(sampler_of(10, 0, 0), std::invalid_argument);
  EXPECT_THROW(sampler_of(10, 2, 0).indices_of(2), std::out_of_range);
}

struct Numbers : torch::data::datasets::Dataset<Numbers, std::size_t> {
  std::size_t get(std::size_t index) override { return index; }
  std::optional<std::size_t> size() const override { return 12; }
};

TEST(DistributedSampler, ServesLibTorchsOwnLoader) {
  auto sampler = sampler_of(12, 2, 1);
  const auto loader = torch::data::make_data_loader(Numbers(), sampler, 6);
  sampler.set_epoch(3);
  std::vector<Indices> batches;
  for (auto& batch : *loader) batches.push_back(batch);
  EXPECT_EQ(batches, std::vector<Indices>{sampler.indices()});
}

}  // namespace
}  // namespace ddp
