#include "ddp/distributed_sampler.hpp"

#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/utils.h>

#include <set>
#include <string>

#include "base/cores.hpp"
#include "ddp/data_loader.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp {
namespace {

using ::ddp::testing::contains;
using ::ddp::testing::run_ranks;

std::string refusal_of(std::size_t size, ProcessGroup& group, const DistributedSamplerOptions& options) {
  try {
    DistributedSampler sampler(size, group, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

TEST(DistributedSamplerRanks, DifferentSettingsAreAnErrorOnEveryRank) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const bool odd_one = group->rank() == 2;
    const auto refusal = refusal_of(10, *group, {.seed = odd_one ? 43u : 42u});
    for (const auto& part : {"rank " + std::to_string(group->rank()) + " of 3: sampler", std::string("rank 2 has"),
                             std::string("seed 42"), std::string("seed 43")}) {
      EXPECT_TRUE(contains(refusal, part));
    }
    EXPECT_TRUE(contains(refusal_of(odd_one ? 11 : 10, *group, {}), "dataset size 11"));
    EXPECT_TRUE(contains(refusal_of(10, *group, {.shuffle = !odd_one}), "shuffle false"));
    EXPECT_TRUE(contains(refusal_of(10, *group, {.drop_last = odd_one}), "drop_last true"));
    EXPECT_EQ(refusal_of(10, *group, {.seed = 42}), "no ConfigError");
  });
}

TEST(DistributedSamplerRanks, SharesAreDisjointAndCompleteWhateverTheGlobalSeeds) {  // R49
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::manual_seed(static_cast<std::uint64_t>(group->rank()));
    const DistributedSampler sampler(100, *group);
    EXPECT_EQ(sampler.rank(), group->rank());
    EXPECT_EQ(sampler.num_replicas(), 2);
    const auto share = sampler.indices();
    EXPECT_EQ(share.size(), 50u);
    std::string bytes(reinterpret_cast<const char*>(share.data()), share.size() * sizeof(std::size_t));
    std::set<std::size_t> seen;
    for (const auto& others : group->all_gather_bytes(bytes)) {
      const auto* first = reinterpret_cast<const std::size_t*>(others.data());
      seen.insert(first, first + others.size() / sizeof(std::size_t));
    }
    EXPECT_EQ(seen.size(), 100u);
  });
}

struct Numbers : torch::data::datasets::Dataset<Numbers, std::size_t> {
  std::size_t get(std::size_t index) override { return index; }
  std::optional<std::size_t> size() const override { return 10; }
};

std::string warnings_of_loader(std::size_t workers, const DistributedSampler& sampler) {
  ::testing::internal::CaptureStderr();
  ddp::make_data_loader(Numbers(), sampler, torch::data::DataLoaderOptions(1).workers(workers));
  return ::testing::internal::GetCapturedStderr();
}

TEST(DistributedSamplerRanks, RankZeroWarnsOfMoreWorkersOfAllRanksThanTheHostsCoresCanServe) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const DistributedSampler sampler(10, *group);
    const auto enough = static_cast<std::size_t>(1.5 * allowed_cores() / 2);
    EXPECT_EQ(warnings_of_loader(enough, sampler), "");
    const auto warning = warnings_of_loader(enough + 1, sampler);
    const auto text = "data loader: " + std::to_string(enough + 1) + " workers for each of 2 ranks";
    EXPECT_EQ(contains(warning, text), group->rank() == 0) << warning;
  });
}

TEST(DistributedSamplerRanks, EveryRankOfALoaderHasTheSameNumberOfBatches) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const DistributedSampler sampler(10, *group);
    const auto loader = ddp::make_data_loader(Numbers(), sampler, torch::data::DataLoaderOptions(1).workers(2));
    for ([[maybe_unused]] auto& batch : *loader) group->barrier();
    EXPECT_EQ(loader->step(), 4u);
  });
}

}  // namespace
}  // namespace ddp
