#include "ddp/data_loader.hpp"

#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/cores.hpp"
#include "numbers.hpp"

namespace ddp {
namespace {

using testing::all_of;
using testing::BadSample;
using testing::Indices;
using testing::Numbers;
using testing::sampler_of;
using testing::tail;
using torch::data::DataLoaderOptions;

Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

/// By the number of workers.
class DataLoaderTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  static DataLoaderOptions options(std::size_t batch_size) { return DataLoaderOptions(batch_size).workers(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Workers, DataLoaderTest, ::testing::Values(0, 1, 3), ::testing::PrintToStringParamName());

TEST_P(DataLoaderTest, GivesTheSamplersIndicesInOrderEpochAfterEpoch) {
  auto sampler = sampler_of(46);
  const auto loader = make_data_loader(Numbers(46), sampler, options(4));
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    const auto seen = all_of(*loader);
    EXPECT_EQ(seen, sampler.indices()) << epoch;
    EXPECT_EQ(loader->step(), 6u);
    EXPECT_EQ(loader->batches(), 6u);
  }
}

TEST_P(DataLoaderTest, CanBeLeftEarlyAndBegunAgain) {
  auto sampler = sampler_of(46);
  const auto loader = make_data_loader(Numbers(46), sampler, options(4));
  for (int round = 0; round < 3; ++round) {
    for ([[maybe_unused]] auto& batch : *loader) break;
  }
  try {
    for ([[maybe_unused]] auto& batch : *loader) throw BadSample("thrown by the loop");
  } catch (const BadSample&) {
  }
  const auto seen = all_of(*loader);
  EXPECT_EQ(seen, sampler.indices());
}

TEST_P(DataLoaderTest, LeavesIteratorsOfAnEarlierPassAtTheirEnd) {
  const auto loader = make_data_loader(Numbers(46), sampler_of(46), options(4));
  auto old = loader->begin();
  EXPECT_FALSE(old == loader->end());
  auto fresh = loader->begin();
  EXPECT_TRUE(old == loader->end());
  EXPECT_THROW(++old, std::logic_error);
  EXPECT_FALSE(fresh == loader->end());
}

TEST_P(DataLoaderTest, CountsWhatTheLoopHasReceivedNotWhatTheWorkersHaveFetched) {
  auto sampler = sampler_of(46);
  const auto loader = make_data_loader(Numbers(46), sampler, options(4));
  std::size_t received = 0;
  for (auto& batch : *loader) {
    received += batch.size();
    EXPECT_EQ(sampler.position(), received);
    EXPECT_EQ(loader->step(), (received + 3) / 4);
  }
  EXPECT_EQ(received, 23u);
  EXPECT_EQ(sampler.position(), 0u) << "the pass is over";
}

TEST_P(DataLoaderTest, ResumesInsideAnEpochWithoutLosingOrRepeatingASample) {
  auto sampler = sampler_of(46);
  sampler.set_epoch(5);
  DistributedSamplerState saved;
  const auto loader = make_data_loader(Numbers(46), sampler, options(4));
  for ([[maybe_unused]] auto& batch : *loader) {
    if (loader->step() < 3) continue;
    saved = sampler.state();
    break;
  }

  auto resumed = sampler_of(46);
  const auto resumed_loader = make_data_loader(Numbers(46), resumed, options(4));
  resumed.restore(saved);
  resumed.set_epoch(5);
  auto iterator = resumed_loader->begin();
  EXPECT_EQ(resumed_loader->step(), 4u);
  Indices rest;
  for (; iterator != resumed_loader->end(); ++iterator) rest.insert(rest.end(), iterator->begin(), iterator->end());
  EXPECT_EQ(rest, tail(sampler.indices(), 12));
  EXPECT_EQ(resumed_loader->step(), 6u);

  resumed.set_epoch(6);
  const auto seen = all_of(*resumed_loader);
  EXPECT_EQ(seen, resumed.indices());
}

TEST_P(DataLoaderTest, PassesTheDatasetsExceptionOnWithItsTypeAndCanBeginAgain) {
  auto sampler = sampler_of(46);
  Numbers data(46);
  const auto bad_sample = data.bad_sample;
  const auto loader = make_data_loader(data, sampler, options(4));
  *bad_sample = sampler.indices()[9];
  try {
    all_of(*loader);
    ADD_FAILURE() << "no exception";
  } catch (const BadSample& error) {
    EXPECT_EQ(error.what(), "sample " + std::to_string(sampler.indices()[9]));
  }
  EXPECT_EQ(loader->step(), 2u);
  EXPECT_EQ(sampler.position(), 8u);
  *bad_sample = ~std::size_t{0};
  const auto seen = all_of(*loader);
  EXPECT_EQ(seen, sampler.indices());
}

TEST_P(DataLoaderTest, LeavesOutAShortLastBatchOnRequest) {
  auto sampler = sampler_of(46);
  const auto loader = make_data_loader(Numbers(46), sampler, options(4).drop_last(true));
  Indices expected = sampler.indices();
  expected.resize(20);
  EXPECT_EQ(all_of(*loader), expected);
  EXPECT_EQ(loader->batches(), 5u);
  EXPECT_EQ(sampler.position(), 0u);
}

TEST_P(DataLoaderTest, GivesEverySampleOnceInAnyOrderOnRequest) {
  auto sampler = sampler_of(46);
  const auto loader = make_data_loader(Numbers(46), sampler, options(4).enforce_ordering(false));
  EXPECT_EQ(sorted(all_of(*loader)), sorted(sampler.indices()));
  EXPECT_EQ(sampler.position(), 0u);
}

TEST_P(DataLoaderTest, RunsNoBodyForAnEmptyDataset) {
  const auto loader = make_data_loader(Numbers(0), sampler_of(0), options(4));
  EXPECT_TRUE(all_of(*loader).empty());
  EXPECT_TRUE(loader->begin() == loader->end());
  EXPECT_EQ(loader->batches(), 0u);
}

TEST_P(DataLoaderTest, EndsInOrderWhenDestroyedInsideAPass) {
  auto loader = make_data_loader(Numbers(46), sampler_of(46), options(4));
  EXPECT_FALSE(loader->begin() == loader->end());
  loader.reset();
}

struct Points : torch::data::datasets::Dataset<Points> {
  torch::data::Example<> get(std::size_t index) override {
    return {torch::full({2, 3}, static_cast<double>(index)), torch::tensor(static_cast<std::int64_t>(index))};
  }
  std::optional<std::size_t> size() const override { return 10; }
};

TEST_P(DataLoaderTest, StacksExamplesOfAMappedDataset) {
  auto sampler = sampler_of(10);
  const auto loader = make_data_loader(Points().map(torch::data::transforms::Stack<>()), sampler, options(5));
  std::size_t batches = 0;
  for (auto& batch : *loader) {
    ++batches;
    EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{5, 2, 3}));
    const auto indices = sampler.indices();
    const std::vector<std::int64_t> expected(indices.begin(), indices.end());
    EXPECT_TRUE(batch.target.equal(torch::tensor(expected)));
  }
  EXPECT_EQ(batches, 1u);
}

TEST(DataLoader, RefusesASamplerOfAnotherDataset) {
  EXPECT_THROW(make_data_loader(Numbers(46), sampler_of(45), 4), std::invalid_argument);
}

TEST(DataLoader, RefusesOptionsThatNeverGiveABatch) {
  EXPECT_THROW(make_data_loader(Numbers(46), sampler_of(46), 0), std::invalid_argument);
  EXPECT_THROW(make_data_loader(Numbers(46), sampler_of(46), DataLoaderOptions(4).workers(1).max_jobs(0)),
               std::invalid_argument);
}

std::string warnings_of(std::size_t workers) {
  ::testing::internal::CaptureStderr();
  make_data_loader(Numbers(8), DistributedSampler(8), torch::data::DataLoaderOptions(4).workers(workers));
  return ::testing::internal::GetCapturedStderr();
}

TEST(DataLoader, WarnsOfMoreWorkersThanCoresCanServe) {
  const auto enough = static_cast<std::size_t>(1.5 * allowed_cores());
  EXPECT_EQ(warnings_of(enough), "");
  const auto warning = warnings_of(enough + 1);
  EXPECT_NE(warning.find("data loader: " + std::to_string(enough + 1) + " workers for each of 1 ranks"),
            std::string::npos)
      << warning;
}

}  // namespace
}  // namespace ddp
