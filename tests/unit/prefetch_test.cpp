#include "ddp/prefetch.hpp"

#include <gtest/gtest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/phase.hpp"
#include "numbers.hpp"

namespace ddp {
namespace {

/// A batch as a program might define it.
struct Boxes {
  at::Tensor boxes;
  std::vector<at::Tensor> scores;
};

}  // namespace

template <>
struct TensorVisitor<Boxes> {
  static void visit(auto& batch, auto& f) {
    visit_tensors(batch.boxes, f);
    visit_tensors(batch.scores, f);
  }
};

namespace {

using testing::all_of;
using testing::BadSample;
using testing::Indices;
using testing::Numbers;
using testing::sampler_of;
using testing::tail;
using torch::data::DataLoaderOptions;

using Words = std::vector<std::string>;

/// Stands for the copier of an accelerator: notes what it is told.
struct NotingCopier {
  void start(Indices& batch) {
    if (batch.front() == refused) throw std::runtime_error("no memory for " + std::to_string(refused));
    notes->push_back("copy " + std::to_string(batch.front()));
  }
  void finish() { notes->emplace_back("wait"); }

  std::shared_ptr<Words> notes = std::make_shared<Words>();
  std::size_t refused = ~std::size_t{0};
};

using Loader = DataLoader<Numbers>;
using Range = Prefetched<Loader, NotingCopier>;

/// By the number of workers.
class PrefetchTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  static std::unique_ptr<Loader> loader_of(const Numbers& data, const DistributedSampler& sampler) {
    return make_data_loader(data, sampler, DataLoaderOptions(4).workers(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, PrefetchTest, ::testing::Values(0, 1, 3), ::testing::PrintToStringParamName());

TEST_P(PrefetchTest, StartsToCopyTheNextBatchBeforeTheLoopIsGivenTheOneAtHand) {
  const DistributedSampler in_order(12, {.shuffle = false});
  const auto loader = loader_of(Numbers(12), in_order);
  const NotingCopier copier;
  Range range(*loader, copier);
  for (auto& batch : range) copier.notes->push_back("compute " + std::to_string(batch.front()));
  EXPECT_EQ(*copier.notes,
            (Words{"copy 0", "wait", "copy 4", "compute 0", "wait", "copy 8", "compute 4", "wait", "compute 8"}));
}

TEST_P(PrefetchTest, GivesTheSamplersIndicesInOrderEpochAfterEpoch) {
  auto sampler = sampler_of(46);
  const auto loader = loader_of(Numbers(46), sampler);
  Range range(*loader, NotingCopier());
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    const auto seen = all_of(range);
    EXPECT_EQ(seen, sampler.indices()) << epoch;
    EXPECT_EQ(loader->step(), 6u);
  }
}

TEST_P(PrefetchTest, CountsWhatTheLoopHasReceivedNotWhatIsUnderWay) {
  auto sampler = sampler_of(46);
  const auto loader = loader_of(Numbers(46), sampler);
  Range range(*loader, NotingCopier());
  std::size_t received = 0;
  for (auto& batch : range) {
    received += batch.size();
    EXPECT_EQ(sampler.position(), received);
    EXPECT_EQ(loader->step(), (received + 3) / 4);
    EXPECT_EQ(sampler.state().epoch, 0u);
    EXPECT_FALSE(data_used_up()) << "of the last batch as well";
  }
  EXPECT_EQ(received, 23u);
  EXPECT_EQ(sampler.state().epoch, 1u);
  EXPECT_EQ(sampler.position(), 0u);
  EXPECT_TRUE(data_used_up());
}

TEST_P(PrefetchTest, ResumesWithTheBatchThatWasUnderWay) {
  for (std::size_t steps = 1; steps <= 6; ++steps) {
    auto sampler = sampler_of(46);
    sampler.set_epoch(5);
    const auto loader = loader_of(Numbers(46), sampler);
    Range range(*loader, NotingCopier());
    Indices seen;
    DistributedSamplerState saved;
    for (auto& batch : range) {
      seen.insert(seen.end(), batch.begin(), batch.end());
      if (loader->step() < steps) continue;
      saved = sampler.state();
      break;
    }

    auto resumed = sampler_of(46);
    const auto resumed_loader = loader_of(Numbers(46), resumed);
    resumed.restore(saved);
    Range rest(*resumed_loader, NotingCopier());
    const auto remaining = all_of(rest);
    EXPECT_EQ(remaining, tail(sampler.indices(), static_cast<std::ptrdiff_t>(seen.size()))) << steps;
    EXPECT_EQ(resumed_loader->step(), 6u);
  }
}

TEST_P(PrefetchTest, CanBeLeftEarlyAndBegunAgainWithOrWithoutPrefetching) {
  auto sampler = sampler_of(46);
  const auto loader = loader_of(Numbers(46), sampler);
  Range range(*loader, NotingCopier());
  for ([[maybe_unused]] auto& batch : range) break;
  EXPECT_EQ(sampler.position(), 4u);
  try {
    for ([[maybe_unused]] auto& batch : range) throw BadSample("thrown by the loop");
  } catch (const BadSample&) {
  }
  auto seen = all_of(range);
  EXPECT_EQ(seen, sampler.indices());
  for ([[maybe_unused]] auto& batch : range) break;
  seen = all_of(*loader);
  EXPECT_EQ(seen, sampler.indices());
}

TEST_P(PrefetchTest, LeavesIteratorsOfAnEarlierPassAtTheirEnd) {
  const auto loader = loader_of(Numbers(46), sampler_of(46));
  Range range(*loader, NotingCopier());
  auto old = range.begin();
  EXPECT_FALSE(old == range.end());
  auto of_the_loader = loader->begin();
  EXPECT_TRUE(old == range.end());
  EXPECT_THROW(++old, std::logic_error);
  auto fresh = range.begin();
  EXPECT_TRUE(of_the_loader == loader->end());
  EXPECT_FALSE(fresh == range.end());
}

TEST_P(PrefetchTest, ThrowsWhereTheLoopWouldBeGivenTheBatchThatFailed) {
  auto sampler = sampler_of(46);
  const Numbers data(46);
  const auto loader = loader_of(data, sampler);
  Range range(*loader, NotingCopier());
  for (const std::size_t sample : {0, 9, 22}) {
    sampler.set_epoch(sample);
    *data.bad_sample = sampler.indices()[sample];
    std::size_t batches = 0;
    try {
      for ([[maybe_unused]] auto& batch : range) ++batches;
      ADD_FAILURE() << "no exception for sample " << sample;
    } catch (const BadSample& error) {
      EXPECT_EQ(error.what(), "sample " + std::to_string(*data.bad_sample));
    }
    EXPECT_EQ(batches, sample / 4);
    EXPECT_EQ(sampler.position(), 4 * batches);
  }
  *data.bad_sample = ~std::size_t{0};
  const auto seen = all_of(range);
  EXPECT_EQ(seen, sampler.indices());
}

TEST_P(PrefetchTest, ThrowsWhatTheCopyingThrowsAtTheBatchThatItWasFor) {
  const DistributedSampler in_order(12, {.shuffle = false});
  const auto loader = loader_of(Numbers(12), in_order);
  Range range(*loader, NotingCopier{.refused = 8});
  auto iterator = range.begin();
  ++iterator;
  EXPECT_EQ(iterator->front(), 4u);
  EXPECT_THROW(++iterator, std::runtime_error);
  EXPECT_TRUE(iterator == range.end());
  EXPECT_EQ(in_order.position(), 8u);
}

TEST_P(PrefetchTest, RunsNoBodyForAnEmptyDataset) {
  const auto loader = loader_of(Numbers(0), sampler_of(0));
  const NotingCopier copier;
  Range range(*loader, copier);
  EXPECT_TRUE(all_of(range).empty());
  EXPECT_TRUE(copier.notes->empty());
}

/// Sample i is [i]; counts what was fetched.
struct Points : torch::data::datasets::Dataset<Points> {
  torch::data::Example<> get(std::size_t index) override {
    ++*fetched;
    const auto number = static_cast<std::int64_t>(index);
    return {torch::full({1}, number), torch::tensor(number)};
  }
  std::optional<std::size_t> size() const override { return 6; }

  std::shared_ptr<std::size_t> fetched = std::make_shared<std::size_t>(0);
};

TEST(Prefetch, PassesBatchesAsTheyAreOnTheCpuAndFetchesNoneAhead) {
  Points points;
  const auto loader = make_data_loader(points.map(torch::data::transforms::Stack<>()),
                                       DistributedSampler(6, {.shuffle = false}), DataLoaderOptions(2));
  std::size_t received = 0;
  for (auto& batch : prefetch(*loader, at::kCPU)) {
    received += 2;
    EXPECT_EQ(*points.fetched, received);
    EXPECT_EQ(batch.target.sum().item<std::int64_t>(), static_cast<std::int64_t>(2 * received - 3));
    EXPECT_EQ(loader->step(), received / 2);
  }
  EXPECT_EQ(received, 6u);
}

TEST(Prefetch, FetchesABatchAheadForAnotherDevice) {
  Points points;
  const auto loader = make_data_loader(points.map(torch::data::transforms::Stack<>()),
                                       DistributedSampler(6, {.shuffle = false}), DataLoaderOptions(2));
  std::vector<std::size_t> fetched;
  for (auto& batch : prefetch(*loader, at::kMeta)) {
    fetched.push_back(*points.fetched);
    EXPECT_TRUE(batch.data.is_meta() && batch.target.is_meta());
    EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{2, 1}));
  }
  EXPECT_EQ(fetched, (std::vector<std::size_t>{4, 6, 6}));
}

/// A dataset without samples of its own: each batch is what `make` says.
template <class Batch>
struct Made : torch::data::datasets::BatchDataset<Made<Batch>, Batch> {
  explicit Made(Batch made) : batch(std::move(made)) {}
  Batch get_batch(c10::ArrayRef<std::size_t>) override { return batch; }
  std::optional<std::size_t> size() const override { return 3; }

  Batch batch;
};

/// How many tensors of the batch are on the device in each of the batches that a loop is given; -1 if some are not.
template <class Batch>
std::vector<int> moved(const Batch& batch) {
  std::vector<int> moved;
  const auto loader = make_data_loader(Made<Batch>(batch), DistributedSampler(3), 1);
  for (auto& given : prefetch(*loader, at::kMeta)) {
    int tensors = 0;
    auto look = [&](const at::Tensor& tensor) { tensors = tensors < 0 || !tensor.is_meta() ? -1 : tensors + 1; };
    visit_tensors(given, look);
    moved.push_back(tensors);
  }
  return moved;
}

TEST(Prefetch, MovesTheTensorsOfEveryTypeOfBatch) {
  const auto tensor = torch::ones({2});
  const auto three_times = [](int tensors) { return std::vector<int>(3, tensors); };
  EXPECT_EQ(moved(tensor), three_times(1));
  EXPECT_EQ(moved(torch::data::Example<>(tensor, tensor)), three_times(2));
  EXPECT_EQ(moved(torch::data::TensorExample(tensor)), three_times(1));
  EXPECT_EQ(moved(std::vector(4, torch::data::Example<>(tensor, tensor))), three_times(8));
  EXPECT_EQ(moved(std::vector(4, torch::data::TensorExample(tensor))), three_times(4));
  EXPECT_EQ(moved(torch::data::Example<at::Tensor, std::vector<bool>>(tensor, {true, false})), three_times(1));
  EXPECT_EQ(moved(std::pair(tensor, 7)), three_times(1));
  EXPECT_EQ(moved(std::tuple(tensor, std::optional(tensor), std::string("name"))), three_times(2));
  EXPECT_EQ(moved(std::map<std::string, at::Tensor>{{"image", tensor}, {"mask", tensor}}), three_times(2));
  EXPECT_EQ(moved(Boxes{tensor, {tensor, tensor}}), three_times(3));
  EXPECT_EQ(moved(std::vector{Indices{1, 2}}), three_times(0));
}

TEST(Prefetch, LeavesUndefinedTensorsUndefined) {
  const auto loader = make_data_loader(Made(torch::data::Example<>(torch::ones({2}), {})), DistributedSampler(3), 1);
  for (auto& batch : prefetch(*loader, at::kMeta)) EXPECT_FALSE(batch.target.defined());
  EXPECT_EQ(loader->step(), 3u);
}

}  // namespace
}  // namespace ddp
