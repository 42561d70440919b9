#include "ddp/metrics.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/distributed_sampler.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp {
namespace {

using ::ddp::testing::contains;
using ::ddp::testing::run_ranks;
using ::ddp::testing::same_on_all_ranks;
using Group = std::shared_ptr<ProcessGroup>;

TEST(Mean, AveragesTheRanksNumbersInDoublePrecision) {
  run_ranks(3, [](const Group& group) {
    EXPECT_DOUBLE_EQ(mean(1e15 + group->rank(), *group), 1e15 + 1);
    EXPECT_TRUE(same_on_all_ranks(*group, torch::tensor(mean(0.1 * group->rank(), *group), torch::kDouble)));
  });
}

TEST(Mean, TakesATensorsMeanAndLeavesTheTensorAlone) {
  run_ranks(3, [](const Group& group) {
    const auto start = torch::arange(4, torch::kFloat) + static_cast<float>(group->rank());
    auto values = start.clone().set_requires_grad(true);
    EXPECT_DOUBLE_EQ(mean(values * 2, *group), 5.0);
    EXPECT_DOUBLE_EQ(mean(values, *group), 2.5);
    EXPECT_TRUE(values.equal(start));
    EXPECT_TRUE(values.requires_grad());
    EXPECT_FALSE(values.grad().defined());
  });
}

TEST(Mean, TakesEveryRealDtype) {
  run_ranks(2, [](const Group& group) {
    for (const auto dtype : {torch::kHalf, torch::kBFloat16, torch::kInt, torch::kByte, torch::kDouble}) {
      EXPECT_DOUBLE_EQ(mean(torch::full({3}, group->rank() + 1, dtype), *group), 1.5) << dtype;
    }
    EXPECT_DOUBLE_EQ(mean(torch::tensor({true, group->rank() == 0}), *group), 0.75);
  });
}

TEST(Mean, RefusesWhatHasNoMean) {
  run_ranks(1, [](const Group& group) {
    EXPECT_THROW(mean(torch::empty({0}), *group), std::invalid_argument);
    EXPECT_THROW(mean(at::Tensor(), *group), std::invalid_argument);
    EXPECT_THROW(mean(torch::ones({2}, torch::kComplexFloat), *group), std::invalid_argument);
  });
}

/// What a model would answer for dataset sample i, so that the single process's result is known: [indices, 2].
at::Tensor answers(const std::vector<std::size_t>& indices) {
  const std::vector<std::int64_t> samples(indices.begin(), indices.end());
  const auto column = torch::tensor(samples, torch::kLong).unsqueeze(1);
  return torch::cat({column * 10, column * 10 + 1}, 1);
}

at::Tensor all_answers(std::int64_t size) {
  const auto column = torch::arange(size, torch::kLong).unsqueeze(1);
  return torch::cat({column * 10, column * 10 + 1}, 1);
}

/// By dataset size, for 3 ranks: with and without padding, fewer samples than ranks, none.
class GatherPredictionsSizes : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Samples, GatherPredictionsSizes, ::testing::Values(0, 1, 2, 9, 10, 11),
                         ::testing::PrintToStringParamName());

TEST_P(GatherPredictionsSizes, PutsEverySampleAtItsPlaceOnce) {
  run_ranks(3, [](const Group& group) {
    DistributedSampler sampler(static_cast<std::size_t>(GetParam()), *group, {.seed = 5});
    sampler.set_epoch(2);
    const auto local = answers(sampler.indices());
    const auto untouched = local.clone();
    const auto gathered = gather_predictions(local, sampler, *group);
    EXPECT_TRUE(gathered.equal(all_answers(GetParam()))) << gathered;
    EXPECT_TRUE(local.equal(untouched));
  });
}

TEST(GatherPredictions, CountsAWrongPaddingNeverAndTheSampleItselfOnce) {
  run_ranks(3, [](const Group& group) {
    const DistributedSampler sampler(10, *group, {.shuffle = false});  // ranks 1 and 2 pad with samples 0 and 1
    auto correct = torch::ones({4}, torch::kBool);
    if (group->rank() != 0) correct[3] = false;
    EXPECT_EQ(gather_predictions(correct, sampler, *group).sum().item<std::int64_t>(), 10);
  });
}

TEST(GatherPredictions, KeepsEveryDtypeToTheBit) {
  run_ranks(2, [](const Group& group) {
    const DistributedSampler sampler(5, *group);
    for (const auto dtype :
         {torch::kBool, torch::kByte, torch::kShort, torch::kLong, torch::kHalf, torch::kBFloat16, torch::kFloat,
          torch::kDouble, torch::kComplexDouble, torch::kFloat8_e4m3fn, torch::kUInt16}) {
      const auto gathered = gather_predictions(answers(sampler.indices()).to(dtype), sampler, *group);
      EXPECT_EQ(gathered.scalar_type(), dtype);
      EXPECT_TRUE(gathered.view(torch::kByte).equal(all_answers(5).to(dtype).view(torch::kByte))) << dtype;
    }
    const auto nan = torch::full({3}, std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(gather_predictions(nan, sampler, *group).isnan().all().item<bool>());
  });
}

TEST(GatherPredictions, TakesViewsAndTensorsWithGradients) {
  run_ranks(2, [](const Group& group) {
    const DistributedSampler sampler(5, *group);
    const auto rows = answers(sampler.indices()).to(torch::kDouble);
    const auto view = rows.t().contiguous().t().set_requires_grad(true);
    const auto gathered = gather_predictions(view, sampler, *group);
    EXPECT_FALSE(gathered.requires_grad());
    EXPECT_TRUE(gathered.equal(all_answers(5).to(torch::kDouble)));
    const auto conjugated = torch::conj(rows.to(torch::kComplexDouble) * c10::complex<double>(0, 1));
    EXPECT_TRUE(gather_predictions(conjugated, sampler, *group)
                    .equal(all_answers(5).to(torch::kComplexDouble) * c10::complex<double>(0, -1)));
  });
}

TEST(GatherPredictions, GivesNoRowsForAnEmptyDatasetEvenFromUndefinedTensors) {
  run_ranks(2, [](const Group& group) {
    const DistributedSampler sampler(0, *group);
    EXPECT_EQ(gather_predictions({}, sampler, *group).size(0), 0);
    EXPECT_EQ(gather_predictions(torch::empty({0, 7}), sampler, *group).sizes(), (std::vector<std::int64_t>{0, 7}));
    EXPECT_EQ(gather_predictions(torch::empty({0}), DistributedSampler(0, *group), *group).sizes(),
              std::vector<std::int64_t>{0});
  });
}

TEST(GatherPredictions, GivesRowsWithoutElements) {
  run_ranks(2, [](const Group& group) {
    const DistributedSampler sampler(5, *group);
    EXPECT_EQ(gather_predictions(torch::empty({3, 0}), sampler, *group).sizes(), (std::vector<std::int64_t>{5, 0}));
  });
}

std::string refusal_of(const at::Tensor& local, const DistributedSampler& sampler, ProcessGroup& group) {
  try {
    gather_predictions(local, sampler, group);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "no std::logic_error";
}

TEST(GatherPredictions, RefusesOnEveryRankWhatDoesNotFitOnOne) {
  run_ranks(3, [](const Group& group) {
    const DistributedSampler sampler(10, *group);
    const bool odd_one = group->rank() == 1;
    EXPECT_TRUE(contains(refusal_of(torch::ones({odd_one ? 3 : 4}), sampler, *group),
                         "rank 1: it has predictions for 3 samples of 4"));
    EXPECT_TRUE(contains(refusal_of(odd_one ? torch::ones({}) : torch::ones({4}), sampler, *group),
                         "rank 1: its predictions have no first dimension"));
    EXPECT_TRUE(contains(refusal_of(torch::ones({4, odd_one ? 2 : 3}), sampler, *group),
                         "ranks 0 and 1 have predictions of different dtypes or shapes"));
    EXPECT_TRUE(contains(refusal_of(torch::ones({4}, odd_one ? torch::kDouble : torch::kFloat), sampler, *group),
                         "ranks 0 and 1"));
    EXPECT_EQ(refusal_of(torch::ones({4}), sampler, *group), "no std::logic_error");
  });
}

TEST(GatherPredictions, RefusesASamplerThatLeavesSamplesOutOrIsNotThisRanks) {
  run_ranks(3, [](const Group& group) {
    const DistributedSampler dropping(10, *group, {.drop_last = true});
    EXPECT_TRUE(contains(refusal_of(torch::ones({3}), dropping, *group), "leaves out 1 of 10 samples"));
    const DistributedSampler even(9, *group, {.drop_last = true});
    EXPECT_EQ(refusal_of(torch::ones({3}), even, *group), "no std::logic_error");
    const DistributedSampler foreign(10, {.num_replicas = 2});
    EXPECT_TRUE(contains(refusal_of(torch::ones({5}), foreign, *group), "that of rank 0 of 2 replicas"));
  });
}

}  // namespace
}  // namespace ddp
