#include "ddp/learning_rate.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <stdexcept>
#include <vector>

#include "ddp/optim.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

using testing::contains;
using testing::error_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ScaledLearningRate, GrowsWithTheBatchOrWithItsRoot) {
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 256, 8192, ScalingRule::linear), 3.2);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 256, 4096, ScalingRule::square_root), 0.4);
}

TEST(ScaledLearningRate, ShrinksWithASmallerBatchAndStaysWithTheSame) {
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 256, 64, ScalingRule::linear), 0.025);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, 256, 64, ScalingRule::square_root), 0.05);
  for (const auto rule : {ScalingRule::linear, ScalingRule::square_root})
    EXPECT_EQ(scaled_learning_rate(0.1, 96, 96, rule), 0.1);
}

TEST(ScaledLearningRate, RefusesWhatIsNoRateAndNoBatch) {
  for (const double rate : {0.0, -0.1, kNaN, kInfinity})
    EXPECT_TRUE(
        contains(error_of<std::invalid_argument>([&] { scaled_learning_rate(rate, 1, 1, ScalingRule::linear); }),
                 "base_rate is "))
        << rate;
  for (const std::int64_t batch : {0, -8}) {
    const auto as_base =
        error_of<std::invalid_argument>([&] { scaled_learning_rate(0.1, batch, 1, ScalingRule::linear); });
    EXPECT_TRUE(contains(as_base, "base_batch is " + std::to_string(batch)));
    const auto as_global =
        error_of<std::invalid_argument>([&] { scaled_learning_rate(0.1, 1, batch, ScalingRule::square_root); });
    EXPECT_TRUE(contains(as_global, "global_batch is " + std::to_string(batch)));
  }
}

std::vector<torch::Tensor> one_parameter() { return {torch::zeros({1}, torch::requires_grad())}; }

TEST(ScalingRuleOfAnOptimizer, IsLinearForSgdAndTheSquareRootForThoseThatDivideByTheGradientsSize) {
  namespace optim = torch::optim;
  EXPECT_EQ(scaling_rule(optim::SGD(one_parameter(), 0.1)), ScalingRule::linear);
  EXPECT_EQ(scaling_rule(optim::Adam(one_parameter())), ScalingRule::square_root);
  EXPECT_EQ(scaling_rule(optim::AdamW(one_parameter())), ScalingRule::square_root);
  EXPECT_EQ(scaling_rule(optim::RMSprop(one_parameter())), ScalingRule::square_root);
  EXPECT_EQ(scaling_rule(optim::Adagrad(one_parameter())), ScalingRule::square_root);
}

TEST(ScalingRuleOfAnOptimizer, KnowsWhatIsDerivedFromThem) {
  EXPECT_EQ(scaling_rule(optim::SGD(one_parameter(), 0.1)), ScalingRule::linear);
  EXPECT_EQ(scaling_rule(optim::Adam(one_parameter())), ScalingRule::square_root);
  EXPECT_EQ(scaling_rule(optim::AdamW(one_parameter())), ScalingRule::square_root);
  struct Nadam : torch::optim::Adam {
    using Adam::Adam;
  };
  EXPECT_EQ(scaling_rule(Nadam(one_parameter())), ScalingRule::square_root);
}

TEST(ScalingRuleOfAnOptimizer, IsTheCallersToChooseForAnyOther) {
  const auto error = error_of<std::invalid_argument>([] { scaling_rule(torch::optim::LBFGS(one_parameter())); });
  EXPECT_TRUE(contains(error, "none is known for torch::optim::LBFGS; choose ScalingRule::linear or"));
}

}  // namespace
}  // namespace ddp
