// What the fused optimizers do beside LibTorch's steps, and what they refuse.

#include "ddp/optim.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp::optim {
namespace {

using ddp::testing::contains;
using ddp::testing::error_of;
using Tensors = std::vector<at::Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor parameter(at::IntArrayRef sizes, double value, double gradient) {
  auto tensor = torch::full(sizes, value, torch::kDouble).requires_grad_();
  tensor.mutable_grad() = torch::full(sizes, gradient, torch::kDouble);
  return tensor;
}

TEST(Optim, RefusesASparseGradientInWordsAndChangesNothing) {
  for (const bool first : {true, false}) {
    const auto dense = parameter({3}, 1, 1), sparse = parameter({3}, 1, 0);
    sparse.mutable_grad() = torch::ones({3}, torch::kDouble).to_sparse();
    AdamW optimizer(first ? Tensors{sparse, dense} : Tensors{dense, sparse});
    const auto text = error_of<std::runtime_error>([&] { optimizer.step(); });
    EXPECT_TRUE(contains(text, "optim::AdamW: a gradient is sparse")) << text;
    EXPECT_TRUE(contains(text, "torch::optim::SGD")) << text;
    EXPECT_TRUE(torch::equal(dense, torch::ones_like(dense)));
    EXPECT_TRUE(optimizer.state().empty());
  }
  const auto sparse = parameter({3}, 1, 0);
  sparse.mutable_grad() = torch::ones({3}, torch::kDouble).to_sparse();
  SGD sgd(Tensors{sparse}, 0.1);
  Adam adam(Tensors{sparse});
  EXPECT_TRUE(contains(error_of<std::runtime_error>([&] { sgd.step(); }), "optim::SGD"));
  EXPECT_TRUE(contains(error_of<std::runtime_error>([&] { adam.step(); }), "optim::Adam:"));
}

TEST(Optim, RefusesOptionsThatLibTorchRefuses) {
  EXPECT_THROW(SGD(Tensors{}, SGDOptions(-1)), c10::Error);
  EXPECT_THROW(SGD(Tensors{}, SGDOptions(1).nesterov(true)), c10::Error);
  EXPECT_THROW(AdamW(Tensors{}, AdamWOptions().betas({1.5, 0.9})), c10::Error);
}

TEST(Optim, ReturnsTheLossOfItsClosure) {
  const auto weight = parameter({2}, 3, 0);
  SGD optimizer(Tensors{weight}, 0.25);
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto squares = weight.pow(2).sum();
    squares.backward();
    return squares;
  });
  EXPECT_EQ(loss.item<double>(), 18);
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 1.5, torch::kDouble)));
  EXPECT_FALSE(optimizer.step().defined());
}

template <class Optimizer>
Tensors stepped_by_a_scheduler() {
  const Tensors parameters{parameter({1}, 0, -1), parameter({1}, 0, -1)};
  Optimizer optimizer({parameters[0]}, SGDOptions(1));
  optimizer.add_param_group({Tensors{parameters[1]}, std::make_unique<SGDOptions>(SGDOptions(10))});
  torch::optim::StepLR scheduler(optimizer, 2, 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.step();
    scheduler.step();
  }
  return parameters;
}

TEST(Optim, IsSteppedBySchedulersAndTakesNewGroups) {
  const auto expected = stepped_by_a_scheduler<torch::optim::SGD>(), stepped = stepped_by_a_scheduler<SGD>();
  EXPECT_NE(expected[0].item<double>(), 5) << "the rate has fallen";
  for (std::size_t i = 0; i < 2; ++i) EXPECT_DOUBLE_EQ(stepped[i].item<double>(), expected[i].item<double>());
}

TEST(Optim, IsTheOptimizerOfItsNameForWhoeverAsks) {
  AdamW optimizer(Tensors{parameter({1}, 0, 0)});
  torch::optim::Optimizer& base = optimizer;
  EXPECT_NE(dynamic_cast<torch::optim::AdamW*>(&base), nullptr);
  EXPECT_EQ(static_cast<AdamWOptions&>(optimizer.defaults()).weight_decay(), 1e-2);
}

TEST(Optim, MovesWithItsStateAndLimit) {
  const auto weight = parameter({1}, 0, 4);
  SGD made(Tensors{weight}, SGDOptions(1).momentum(0.5));
  made.set_max_grad_norm(1);
  made.step();
  SGD moved(std::move(made));
  moved.step();
  // Clipped to 1 within 1e-6: 1, then 0.5 + 1.
  EXPECT_NEAR(weight.item<double>(), -2.5, 1e-5);
  SGD assigned(Tensors{}, 1);
  assigned = std::move(moved);
  EXPECT_EQ(assigned.state().size(), 1U);
  moved.set_max_grad_norm(2);
  moved.step();
  EXPECT_EQ(moved.grad_norm(), 0) << "nothing is left there to be stepped";
}

TEST(Optim, ChangesAParameterInPlaceForAutograd) {
  const auto weight = parameter({2}, 1, 1);
  const auto loss = (weight * weight).sum();
  SGD(Tensors{weight}, 0.1).step();
  EXPECT_THROW(loss.backward(), c10::Error) << "the graph holds weights that are gone";
}

TEST(Optim, StepsAFrozenParameterAndOneWithoutGradientsNot) {
  const auto frozen = torch::ones({2}, torch::kDouble), idle = torch::ones({2}, torch::kDouble).requires_grad_();
  AdamW optimizer(Tensors{frozen, idle}, AdamWOptions(1).weight_decay(1));
  optimizer.step();
  EXPECT_TRUE(torch::equal(frozen, torch::ones_like(frozen)));
  EXPECT_TRUE(torch::equal(idle, torch::ones_like(idle)));
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Optim, LimitsTheNormAsClippingWouldAndLeavesTheGradients) {
  for (const double limit : {0.5, 100.0}) {
    torch::manual_seed(4);
    const Tensors ours{torch::randn({50, 3}, torch::kDouble), torch::randn({7}, torch::kDouble).slice(0, 0, 7, 2),
                       torch::randn({9}, torch::kBFloat16), torch::randn({3}, torch::kComplexDouble)};
    Tensors theirs;
    double squares = 0;
    for (const auto& tensor : ours) {
      tensor.mutable_grad() = torch::randn_like(tensor, at::MemoryFormat::Contiguous);
      const auto norm = tensor.grad().abs().to(torch::kDouble).norm().item<double>();
      squares += norm * norm;
      theirs.push_back(tensor.clone());
    }
    const auto norm = std::sqrt(squares), factor = std::min(1.0, limit / (norm + 1e-6));
    for (std::size_t i = 0; i < ours.size(); ++i) theirs[i].mutable_grad() = ours[i].grad() * factor;
    const auto before = ours[0].grad().clone();
    torch::optim::SGD their_optimizer(theirs, 0.1);
    SGD optimizer(ours, 0.1);
    EXPECT_FALSE(optimizer.grad_norm());
    optimizer.set_max_grad_norm(limit);
    their_optimizer.step();
    optimizer.step();
    EXPECT_NEAR(optimizer.grad_norm().value(), norm, 1e-12 * norm);
    for (std::size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-12, 1e-13)) << i << ", limit " << limit;
    EXPECT_TRUE(torch::equal(ours[0].grad(), before)) << "one pass reads and scales it";
    optimizer.set_max_grad_norm(std::nullopt);
    optimizer.step();
    EXPECT_FALSE(optimizer.grad_norm());
  }
}

TEST(Optim, CountsAGradientThatTwoParametersShareOnceInTheNorm) {
  const auto first = parameter({2}, 0, 3), second = parameter({2}, 0, 0);
  second.mutable_grad() = first.grad();
  SGD optimizer(Tensors{first, second}, 1);
  optimizer.set_max_grad_norm(1);
  optimizer.step();
  EXPECT_DOUBLE_EQ(optimizer.grad_norm().value(), std::sqrt(18));
}

TEST(Optim, FormsTheNormOfAConjugateGradient) {
  const auto weight = torch::zeros({2}, torch::kComplexDouble);
  weight.mutable_grad() =
      at::complex(torch::tensor({3.0, 0.0}), torch::tensor({0.0, 4.0})).to(torch::kComplexDouble).conj();
  ASSERT_TRUE(weight.grad().is_conj());
  SGD optimizer(Tensors{weight}, 1);
  optimizer.set_max_grad_norm(1);
  optimizer.step();
  EXPECT_DOUBLE_EQ(optimizer.grad_norm().value(), 5);
}

TEST(Optim, TakesAGradientThatHasNoMemory) {
  const auto weight = parameter({3}, 2, 0);
  weight.mutable_grad() = at::_efficientzerotensor({3}, torch::kDouble);
  AdamW optimizer(Tensors{weight}, AdamWOptions(0.5).weight_decay(0.5));
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full_like(weight, 1.5)));
}

TEST(Optim, RefusesALimitThatIsNone) {
  AdamW optimizer(Tensors{});
  for (const double limit : {0.0, -1.0, std::nan("")})
    EXPECT_TRUE(contains(error_of<std::invalid_argument>([&] { optimizer.set_max_grad_norm(limit); }),
                         "optim::AdamW: max_grad_norm is"));
}

TEST(Optim, StepsByScaledGradientsOnlyIfTheyMay) {
  const auto weight = parameter({3}, 1, 8);
  SGD optimizer(Tensors{weight}, 1);
  bool told = false;
  EXPECT_FALSE(optimizer.step_if_finite(0.5, [&](bool finite) { return told = finite, false; }));
  EXPECT_TRUE(told);
  EXPECT_TRUE(torch::equal(weight, torch::ones_like(weight)));
  EXPECT_TRUE(optimizer.step_if_finite(0.5, [](bool finite) { return finite; }));
  EXPECT_TRUE(torch::equal(weight, torch::full_like(weight, -3)));
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    weight.mutable_grad()[1] = bad;
    EXPECT_FALSE(optimizer.step_if_finite(0.5, [](bool finite) { return finite; })) << bad;
  }
  weight.mutable_grad() = torch::full({3}, 1e200, torch::kDouble);
  EXPECT_TRUE(optimizer.step_if_finite(1e-200, [](bool finite) { return finite; }))
      << "finite, though its square is not";
}

}  // namespace
}  // namespace ddp::optim
