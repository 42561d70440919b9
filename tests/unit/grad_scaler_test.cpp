// One process; see tests/ranks/grad_scaler_test.cpp for several.

#include "ddp/grad_scaler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "ddp/optim.hpp"
#include "support/text.hpp"

namespace ddp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One weight under plain gradient descent of rate 1.
template <class Sgd>
struct WeightOf {
  explicit WeightOf(torch::Dtype dtype = torch::kFloat) : value(torch::zeros({2}, dtype).requires_grad_()) {}

  /// Gradients (1, `gradient`) times the scale.
  void backward(GradScaler& scaler, float gradient = 1) {
    value.mutable_grad() = at::Tensor();
    scaler.scale((value * torch::tensor({1.F, gradient}).to(value.dtype())).sum()).backward();
  }
  bool step(GradScaler& scaler, float gradient = 1) {
    backward(scaler, gradient);
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  }

  at::Tensor value;
  Sgd optimizer{std::vector{value}, 1.0};
};
using Weight = WeightOf<torch::optim::SGD>;
using FusedWeight = WeightOf<optim::SGD>;

template <class AnyWeight>
void expect_steps_as_if_the_loss_had_not_been_scaled() {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kComplexFloat}) {
    AnyWeight weight(dtype);
    GradScaler scaler({.init_scale = 1024});
    weight.value.mutable_grad() = torch::full({2}, 1024 * 0.25, torch::kFloat).to(dtype);
    EXPECT_TRUE(scaler.step(weight.optimizer));
    EXPECT_TRUE(torch::equal(weight.value.detach(), torch::full({2}, -0.25, torch::kFloat).to(dtype))) << dtype;
  }
}

TEST(GradScaler, StepsAsIfTheLossHadNotBeenScaled) {
  expect_steps_as_if_the_loss_had_not_been_scaled<Weight>();
  expect_steps_as_if_the_loss_had_not_been_scaled<FusedWeight>();
}

template <class AnyWeight>
void expect_to_skip_steps_with_infinite_gradients() {
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    AnyWeight weight;
    GradScaler scaler({.init_scale = 1024});
    EXPECT_FALSE(weight.step(scaler, bad));
    EXPECT_TRUE(torch::equal(weight.value.detach(), torch::zeros({2})));
    EXPECT_EQ(scaler.current_scale(), 512);
    EXPECT_TRUE(weight.step(scaler));
    EXPECT_TRUE(torch::equal(weight.value.detach(), torch::full({2}, -1.0F)));
  }
}

TEST(GradScaler, SkipsAStepWithAnInfiniteGradientAndHalvesTheScale) {
  expect_to_skip_steps_with_infinite_gradients<Weight>();
  expect_to_skip_steps_with_infinite_gradients<FusedWeight>();
}

TEST(GradScaler, GrowsAfterAnIntervalWithoutOneAndNotBeyondFloat) {
  Weight weight;
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  std::vector<double> scales;
  for (const float gradient : {1.F, 1.F, kInfinity, 1.F, 1.F, 1.F, 1.F}) {
    weight.step(scaler, gradient);
    scales.push_back(scaler.current_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 4, 4, 4, 8, 8}));

  GradScaler largest({.init_scale = std::numeric_limits<float>::max(), .growth_interval = 1});
  Weight still;
  still.value.mutable_grad() = torch::zeros({2});
  largest.step(still.optimizer);
  largest.update();
  EXPECT_EQ(largest.current_scale(), std::numeric_limits<float>::max());
}

TEST(GradScaler, DoesNotFallToWhereNothingCanBeUnscaled) {
  Weight weight;
  GradScaler scaler({.init_scale = 1e-37, .backoff_factor = 0.1});
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(weight.step(scaler, kInfinity));
  EXPECT_TRUE(weight.step(scaler));
  EXPECT_TRUE(torch::allclose(weight.value.detach(), torch::full({2}, -1.0F))) << weight.value;
}

TEST(GradScaler, ThatIsFixedSkipsAndKeepsItsScale) {
  Weight weight;
  GradScaler scaler({.init_scale = 16, .growth_interval = 1, .dynamic = false});
  EXPECT_TRUE(weight.step(scaler));
  EXPECT_FALSE(weight.step(scaler, kInfinity));
  EXPECT_EQ(scaler.current_scale(), 16);
}

TEST(GradScaler, ThatIsNotEnabledDoesNothing) {
  Weight weight;
  GradScaler scaler({.enabled = false});
  const auto loss = torch::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  scaler.unscale_(weight.optimizer);
  EXPECT_TRUE(weight.step(scaler, kInfinity));
  EXPECT_EQ(scaler.current_scale(), 1);
}

template <class AnyWeight>
void expect_to_unscale_once() {
  AnyWeight weight;
  GradScaler scaler({.init_scale = 64});
  weight.backward(scaler);
  scaler.unscale_(weight.optimizer);
  EXPECT_TRUE(torch::equal(weight.value.grad(), torch::ones({2})));
  EXPECT_THROW(scaler.unscale_(weight.optimizer), std::logic_error);
  EXPECT_TRUE(scaler.step(weight.optimizer));
  EXPECT_TRUE(torch::equal(weight.value.detach(), torch::full({2}, -1.0F)));
  EXPECT_THROW(scaler.step(weight.optimizer), std::logic_error);
  EXPECT_THROW(scaler.unscale_(weight.optimizer), std::logic_error);
  scaler.update();
  EXPECT_THROW(scaler.update(), std::logic_error);
}

TEST(GradScaler, UnscalesForThoseWhoLookAtGradientsAndOnceOnly) {
  expect_to_unscale_once<Weight>();
  expect_to_unscale_once<FusedWeight>();
}

TEST(GradScaler, LetsAFusedStepUnscaleOnItsWayAndLeavesItsGradients) {
  FusedWeight weight;
  GradScaler scaler({.init_scale = 64});
  weight.backward(scaler);
  EXPECT_TRUE(scaler.step(weight.optimizer));
  EXPECT_TRUE(torch::equal(weight.value.grad(), torch::full({2}, 64.F)));
  EXPECT_TRUE(torch::equal(weight.value.detach(), torch::full({2}, -1.F)));
  EXPECT_THROW(scaler.unscale_(weight.optimizer), std::logic_error);
  EXPECT_THROW(scaler.step(weight.optimizer), std::logic_error);
  scaler.update();
}

TEST(GradScaler, LetsAFusedStepLimitTheNormOfUnscaledGradients) {
  for (const bool unscales : {false, true}) {
    FusedWeight weight;
    weight.optimizer.set_max_grad_norm(1);
    GradScaler scaler({.init_scale = 64});
    weight.backward(scaler, 0.75F);  // (1, 0.75)
    if (unscales) scaler.unscale_(weight.optimizer);
    EXPECT_TRUE(scaler.step(weight.optimizer));
    scaler.update();
    EXPECT_NEAR(weight.optimizer.grad_norm().value(), 1.25, 1e-12);
    EXPECT_TRUE(torch::allclose(weight.value.detach(), torch::tensor({-0.8F, -0.6F}), 1e-5));
  }
}

template <class AnyWeight>
void expect_to_unscale_a_shared_gradient_once() {
  AnyWeight weight;
  auto twin = torch::zeros({2}).requires_grad_();
  weight.optimizer.add_param_group({{twin}});
  GradScaler scaler({.init_scale = 4});
  weight.backward(scaler);
  twin.mutable_grad() = weight.value.grad();
  scaler.step(weight.optimizer);
  EXPECT_TRUE(torch::equal(twin.detach(), torch::full({2}, -1.0F)));
}

TEST(GradScaler, UnscalesAGradientOfTwoParametersOnce) {
  expect_to_unscale_a_shared_gradient_once<Weight>();
  expect_to_unscale_a_shared_gradient_once<FusedWeight>();
}

TEST(GradScaler, UnscalesTheRowsOfASparseGradient) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  torch::optim::SGD optimizer(embedding->parameters(), 1.0);
  const auto before = embedding->weight.detach().clone();
  GradScaler scaler({.init_scale = 32});
  scaler.scale(embedding(torch::tensor({1, 1, 3})).sum()).backward();
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(torch::allclose(before - embedding->weight.detach(),
                              torch::tensor({{0.F, 0.F}, {2.F, 2.F}, {0.F, 0.F}, {1.F, 1.F}})));
}

TEST(GradScaler, JudgesEachOptimizerAloneAndLowersTheScaleForOne) {
  Weight good;
  FusedWeight bad;
  GradScaler scaler({.init_scale = 8});
  good.backward(scaler);
  bad.backward(scaler, kInfinity);
  EXPECT_TRUE(scaler.step(good.optimizer));
  EXPECT_FALSE(scaler.step(bad.optimizer));
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 4);
}

TEST(GradScaler, SaysOnceThatTheScaleIsNotTheReason) {
  Weight weight;
  GradScaler scaler({.init_scale = 4});
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 6; ++i) weight.step(scaler, kInfinity);
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(testing::count(said, "gives infinite values or NaN by itself"), 1) << said;
}

TEST(GradScaler, GoesOnFromItsState) {
  Weight weight;
  const GradScalerOptions options{.init_scale = 8, .growth_interval = 3};
  GradScaler scaler(options), other({.init_scale = 1});
  weight.step(scaler);
  weight.step(scaler);
  other.state().stage(scaler.state().state())();
  EXPECT_EQ(other.current_scale(), 8);
  weight.step(other);
  EXPECT_EQ(other.current_scale(), 16);
}

TEST(GradScaler, LeavesAFixedOneAndTheStateOfNoneAlone) {
  GradScaler dynamic({.init_scale = 8}), fixed({.init_scale = 2, .dynamic = false}), none({.enabled = false});
  fixed.state().stage(dynamic.state().state())();
  EXPECT_EQ(fixed.current_scale(), 2);
  dynamic.state().stage(none.state().state())();
  EXPECT_EQ(dynamic.current_scale(), 8);
  EXPECT_THROW(dynamic.state().stage(c10::IValue(3)), std::exception);
}

TEST(GradScaler, RefusesOptionsThatMakeNoSense) {
  for (const auto& options : {GradScalerOptions{.init_scale = 0},
                              {.init_scale = 1e60},
                              {.init_scale = 1e-60},
                              {.growth_factor = 1},
                              {.backoff_factor = 1},
                              {.backoff_factor = 0},
                              {.growth_interval = 0}})
    EXPECT_THROW(GradScaler{options}, std::invalid_argument);
}

}  // namespace
}  // namespace ddp
