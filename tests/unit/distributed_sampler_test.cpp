#include "ddp/distributed_sampler.hpp"

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/serialize.h>

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "ddp/error.hpp"
#include "support/text.hpp"

namespace ddp {
namespace {

using Indices = std::vector<std::size_t>;
using testing::count;

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

/// Where Python's generator refuses the sum.
TEST(DistributedSampler, CountsSeedAndEpochModulo64Bits) {
  DistributedSampler sampler(100, {.seed = ~std::uint64_t{0}});
  sampler.set_epoch(4);
  DistributedSampler same(100, {.seed = 3});
  EXPECT_EQ(sampler.indices(), same.indices());
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

TEST(DistributedSampler, ContinuesWhereASavedOneWas) {  // R47
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

TEST(DistributedSampler, RefusesAPositionOfOtherData) {
  auto sampler = sampler_of(40, 2, 1);
  const DistributedSamplerState fits{.seed = 5, .epoch = 7, .position = 8, .dataset_size = 40, .num_replicas = 2};
  auto other_data = fits;
  other_data.dataset_size = 41;
  auto beyond = fits;
  beyond.position = 21;
  for (const auto& state : {other_data, beyond}) {
    EXPECT_THROW(sampler.restore(state), CheckpointError);
    EXPECT_EQ(sampler.seed(), 3u) << "a refused state must change nothing";
  }
  other_data.position = 0;  // between epochs the data may change
  sampler.restore(other_data);
  EXPECT_EQ(sampler.epoch(), 7u);
  EXPECT_EQ(sampler.seed(), 5u);
}

/// What `replicas` ranks still get, of which each has received `position` samples when it is saved.
std::multiset<std::size_t> rest_of(const DistributedSamplerState& state, std::size_t size, int replicas, bool pad) {
  std::multiset<std::size_t> rest;
  for (int rank = 0; rank < replicas; ++rank) {
    DistributedSampler sampler(size, {.num_replicas = replicas, .rank = rank, .pad = pad});
    sampler.restore(state);
    sampler.reset();
    for (const auto& batch : batches_of(sampler, 3)) rest.insert(batch.begin(), batch.end());
    sampler.reset();
    const auto next = batches_of(sampler, 1000);
    EXPECT_EQ(next.empty() ? Indices() : next[0], sampler.indices()) << "the pass after that is a whole one";
    EXPECT_EQ(sampler.epoch(), state.epoch + 1);
  }
  return rest;
}

TEST(DistributedSampler, SharesWhatIsLeftOfAnEpochAmongAnotherNumberOfRanks) {
  constexpr std::size_t size = 41;
  const DistributedSampler all(size, {.num_replicas = 1, .rank = 0, .seed = 3});
  const auto order = all.indices();
  for (const int before : {1, 2, 4}) {
    for (const int after : {1, 2, 3, 5, 50}) {
      const DistributedSamplerState saved{
          .seed = 3, .epoch = 0, .position = 6, .dataset_size = size, .num_replicas = before};
      const std::multiset<std::size_t> left(order.begin() + 6 * before, order.end());
      EXPECT_EQ(rest_of(saved, size, after, false), left) << before << " ranks, then " << after;
      const auto padded = rest_of(saved, size, after, true);
      EXPECT_TRUE(std::includes(padded.begin(), padded.end(), left.begin(), left.end()));
      EXPECT_EQ(padded.size() % static_cast<std::size_t>(after), 0u);
      EXPECT_LT(padded.size(), left.size() + static_cast<std::size_t>(after));
    }
  }
}

TEST(DistributedSampler, CanBeSavedInTheRestOfAnEpochThatOtherRanksBegan) {
  const DistributedSampler all(41, {.num_replicas = 1, .rank = 0, .seed = 3});
  const auto order = all.indices();
  DistributedSampler second(41, {.num_replicas = 3, .rank = 1});
  second.restore({.seed = 3, .epoch = 0, .position = 6, .dataset_size = 41, .num_replicas = 2});
  second.reset();
  second.next(4);  // of 29 left, 12 are gone now
  EXPECT_EQ(rest_of(second.state(), 41, 5, false), std::multiset<std::size_t>(order.begin() + 24, order.end()));
  EXPECT_EQ(rest_of(second.state(), 41, 3, false), std::multiset<std::size_t>(order.begin() + 24, order.end()));
}

TEST(DistributedSampler, WithoutPaddingGivesEachSampleOnce) {
  for (const std::size_t size : {0, 1, 2, 3, 10, 11, 12, 100}) {
    for (const int replicas : {1, 2, 3, 7}) {
      const DistributedSampler sampler(size, {.num_replicas = replicas, .pad = false});
      std::multiset<std::size_t> seen;
      for (int rank = 0; rank < replicas; ++rank) {
        const auto share = sampler.indices_of(rank);
        EXPECT_EQ(share.size(), sampler.size_of(rank));
        EXPECT_LE(share.size(), sampler.size_of(0));
        EXPECT_GE(share.size() + 1, sampler.size_of(0));
        seen.insert(share.begin(), share.end());
      }
      EXPECT_EQ(seen.size(), size);
      EXPECT_EQ(std::set<std::size_t>(seen.begin(), seen.end()).size(), size);
    }
  }
}

/// What it logs meanwhile.
std::string log_of(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

TEST(DistributedSampler, AdvancesByItselfAndSaysSoOnce) {
  auto sampler = sampler_of(100, 2, 0);
  auto chosen = sampler_of(100, 2, 0);
  const auto log = log_of([&] {
    for (std::size_t epoch = 0; epoch < 4; ++epoch) {
      chosen.set_epoch(epoch);
      sampler.reset();
      EXPECT_EQ(batches_of(sampler, 1000), std::vector<Indices>{chosen.indices()}) << epoch;
      EXPECT_EQ(sampler.epoch(), epoch);
    }
  });
  EXPECT_EQ(count(log, "sampler: the epoch advances by itself, now to 1; set_epoch() would choose it"), 1) << log;
  EXPECT_EQ(count(log, "sampler"), 1) << log;
}

TEST(DistributedSampler, AdvancesAlsoAfterAPassThatWasLeftEarly) {
  auto sampler = sampler_of(100, 2, 0);
  sampler.reset();
  sampler.next(4);
  sampler.reset();
  EXPECT_EQ(sampler.epoch(), 1u);
  EXPECT_EQ(sampler.position(), 0u);
}

TEST(DistributedSampler, WarnsOnceOfAnEpochThatWasPassed) {
  auto sampler = sampler_of(100, 2, 0);
  const auto log = log_of([&] {
    for (int pass = 0; pass < 3; ++pass) {
      sampler.set_epoch(4);
      sampler.reset();
      batches_of(sampler, 1000);
    }
  });
  EXPECT_EQ(count(log, "sampler: set_epoch(4) again: the next pass has the order of the last one"), 1) << log;
  const auto quiet = log_of([] {
    DistributedSampler unshuffled(100, {.num_replicas = 2, .rank = 0, .shuffle = false});
    for (int pass = 0; pass < 3; ++pass) {
      unshuffled.set_epoch(0);
      unshuffled.reset();
      batches_of(unshuffled, 1000);
      unshuffled.reset();
    }
  });
  EXPECT_EQ(quiet, "") << "the order is the same in every epoch";
}

TEST(DistributedSampler, SavedAfterAWholePassStandsAtTheNextEpoch) {
  auto sampler = sampler_of(40, 2, 1);
  sampler.set_epoch(6);
  sampler.reset();
  batches_of(sampler, 4);
  EXPECT_EQ(sampler.epoch(), 6u);
  EXPECT_EQ(sampler.state().epoch, 7u);
  auto resumed = sampler_of(40, 2, 1);
  resumed.restore(sampler.state());
  resumed.reset();
  sampler.reset();
  EXPECT_EQ(resumed.indices(), sampler.indices());
  EXPECT_EQ(resumed.epoch(), 7u);
}

/// Chunks of three numbers.
struct Chunks : torch::data::datasets::ChunkDataReader<std::size_t> {
  using BatchType = std::vector<std::size_t>;
  std::vector<std::size_t> read_chunk(std::size_t chunk) override { return {3 * chunk, 3 * chunk + 1, 3 * chunk + 2}; }
  std::size_t chunk_count() override { return 7; }
  void reset() override {}
};

TEST(DistributedSampler, SharesTheChunksOfAChunkDataset) {
  using Chunked =
      torch::data::datasets::ChunkDataset<Chunks, DistributedSampler, torch::data::samplers::SequentialSampler>;
  std::multiset<std::size_t> seen;
  for (int rank = 0; rank < 2; ++rank) {
    DistributedSampler chunks(7, {.num_replicas = 2, .rank = rank, .pad = false});
    Chunked dataset(Chunks(), chunks, torch::data::samplers::SequentialSampler(0),
                    torch::data::datasets::ChunkDatasetOptions(1, 2));
    dataset.reset();
    while (const auto batch = dataset.get_batch(2)) seen.insert(batch->begin(), batch->end());
  }
  EXPECT_EQ(seen.size(), 21u);
  EXPECT_EQ(std::set<std::size_t>(seen.begin(), seen.end()).size(), 21u);
}

TEST(DistributedSampler, ChoosesTheOrderOfAChunkDatasetsChunks) {
  using Chunked =
      torch::data::datasets::ChunkDataset<Chunks, DistributedSampler, torch::data::samplers::SequentialSampler>;
  DistributedSampler chunks(7, {.seed = 3});
  Chunked dataset(Chunks(), chunks, torch::data::samplers::SequentialSampler(0),
                  torch::data::datasets::ChunkDatasetOptions(1, 3));
  for (const std::size_t epoch : {0, 1, 6}) {
    chunks.set_epoch(epoch);
    dataset.reset();
    Indices seen;
    while (const auto batch = dataset.get_batch(3)) seen.push_back(batch->front() / 3);
    EXPECT_EQ(seen, chunks.indices()) << epoch;
  }
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
  EXPECT_THROW(DistributedSampler(10, {.drop_last = true, .pad = false}), std::invalid_argument);
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
