// GradScaler with the optimizers of optim.hpp: the decisions, scales and weights that it has with LibTorch's.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "ddp/accumulate.hpp"
#include "ddp/clip_grad.hpp"
#include "ddp/grad_scaler.hpp"
#include "support/optimizers.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Optimizer = torch::optim::Optimizer;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLimit = 0.3;
constexpr int kSteps = 20;

/// Each rank has infinite inputs in steps of its own.
Batch batch_of(const ProcessGroup& group, int step) {
  auto batch = Batch::of_step(step, 6).of_rank(group.rank(), group.size());
  if ((step * 7 + group.rank() * 5) % 11 == 0) batch.input[0][0] = step % 2 == 0 ? kInfinity : std::nan("");
  return batch;
}

struct Trained {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> scales, steps;
};

/// step(scaler, optimizer, parameters) is what a loop does between backward() and update(); says whether it stepped.
template <class Step>
Trained train(const Group& group, const MakeOptimizer& make_optimizer, const Step& step_of) {
  Perceptron net;
  DistributedDataParallel model(net, group);
  const auto optimizer = make_optimizer(net->parameters());
  GradScaler scaler(model, {.init_scale = 64, .growth_interval = 2});
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = batch_of(*group, step);
    optimizer->zero_grad();
    scaler.scale(squared_error(model(batch.input), batch.target)).backward();
    trained.steps.push_back(torch::tensor(step_of(scaler, *optimizer, net->parameters())));
    scaler.update();
    trained.scales.push_back(torch::tensor(scaler.current_scale()));
  }
  trained.values = values_of(*net);
  return trained;
}

void expect_equal_runs(ProcessGroup& group, const Trained& ours, const Trained& theirs) {
  expect_equal_values(group, ours.values, theirs.values, values_of(PerceptronImpl()));
  EXPECT_TRUE(torch::equal(torch::stack(ours.steps), torch::stack(theirs.steps)));
  EXPECT_TRUE(torch::equal(torch::stack(ours.scales), torch::stack(theirs.scales)));
  const auto stepped = torch::stack(theirs.steps).sum().item<std::int64_t>();
  EXPECT_TRUE(stepped > kSteps / 4 && stepped < kSteps) << stepped;
}

template <class OfOurs, class OfTheirs>
void expect_equal_runs(const OfOurs& step_of_ours, const OfTheirs& step_of_theirs) {
  for (int world = 1; world <= 3; ++world)
    run_ranks(world, [&](const Group& group) {
      for (const auto& pair : optimizer_pairs()) {
        SCOPED_TRACE(pair.name);
        const auto theirs = train(group, pair.theirs, step_of_theirs);
        expect_equal_runs(*group, train(group, pair.ours, step_of_ours), theirs);
      }
    });
}

const auto kStepAlone = [](GradScaler& scaler, Optimizer& optimizer, const auto&) { return scaler.step(optimizer); };
const auto kClipped = [](GradScaler& scaler, Optimizer& optimizer, const auto& parameters) {
  scaler.unscale_(optimizer);
  clip_grad_norm_(parameters, kLimit);
  return scaler.step(optimizer);
};

TEST(OptimScaled, StepsWithRandomInfinitiesLikeLibTorchs) { expect_equal_runs(kStepAlone, kStepAlone); }

TEST(OptimScaled, StepsByClippedGradientsLikeLibTorchs) { expect_equal_runs(kClipped, kClipped); }

TEST(OptimScaled, LimitsTheNormOfUnscaledGradientsAsClippingDoes) {
  const auto limited = [](GradScaler& scaler, Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
    auto& fused = dynamic_cast<optim::FusedOptimizer&>(optimizer);
    fused.set_max_grad_norm(kLimit);
    const auto scale = scaler.current_scale();
    if (!scaler.step(optimizer)) {
      EXPECT_FALSE(fused.grad_norm()) << "nothing was stepped by";
      return false;
    }
    double squares = 0;
    for (const auto& parameter : parameters) squares += parameter.grad().pow(2).sum().item<double>();
    EXPECT_NEAR(fused.grad_norm().value(), std::sqrt(squares) / scale, 1e-12 * std::sqrt(squares));
    return true;
  };
  expect_equal_runs(limited, kClipped);
}

TEST(OptimScaled, StepsByALimitAfterUnscalingAsClippingDoes) {
  const auto limited = [](GradScaler& scaler, Optimizer& optimizer, const auto&) {
    dynamic_cast<optim::FusedOptimizer&>(optimizer).set_max_grad_norm(kLimit);
    scaler.unscale_(optimizer);
    return scaler.step(optimizer);
  };
  expect_equal_runs(limited, kClipped);
}

TEST(OptimScaled, LeavesGradientsScaledThatNobodyUnscaled) {
  run_ranks(2, [](const Group& group) {
    for (const auto& pair : optimizer_pairs())
      for (const bool unscales : {false, true}) {
        Perceptron net;
        DistributedDataParallel model(net, group);
        const auto optimizer = pair.ours(net->parameters());
        GradScaler scaler(model, {.init_scale = 32});
        const auto batch = Batch::of_step(1, 6).of_rank(group->rank(), 2);
        scaler.scale(squared_error(model(batch.input), batch.target)).backward();
        const auto before = net->layers[0]->weight.grad().clone();
        if (unscales) scaler.unscale_(*optimizer);
        EXPECT_TRUE(scaler.step(*optimizer));
        const auto& after = net->layers[0]->weight.grad();
        EXPECT_TRUE(torch::equal(after, unscales ? before / 32 : before)) << pair.name << ", unscales " << unscales;
      }
  });
}

// A layer that is each rank's own: only one rank sees its infinite gradient, and none steps.
TEST(OptimScaled, AsksTheOtherRanksWhereAParameterIsNotAveraged) {
  const DistributedDataParallelOptions ignoring{.ignored_parameters = {"layer3.weight", "layer3.bias"}};
  for (const int world : {2, 3})
    run_ranks(world, [&](const Group& group) {
      for (const auto& pair : optimizer_pairs())
        for (const bool unscales : {false, true}) {
          Perceptron net;
          DistributedDataParallel model(net, group, ignoring);
          const auto optimizer = pair.ours(net->parameters());
          GradScaler scaler(model, {.init_scale = 8});
          for (int step = 0; step < 3; ++step) {
            const auto before = values_of(*net);
            const auto batch = Batch::of_step(step, 6).of_rank(group->rank(), world);
            optimizer->zero_grad();
            scaler.scale(squared_error(model(batch.input), batch.target)).backward();
            const bool is_bad = step == 1;
            if (is_bad && group->rank() + 1 == world) net->layers[3]->bias.mutable_grad()[0] = kInfinity;
            if (unscales) scaler.unscale_(*optimizer);
            EXPECT_EQ(scaler.step(*optimizer), !is_bad) << pair.name;
            scaler.update();
            for (std::size_t i = 0; i < before.size(); ++i)
              EXPECT_EQ(torch::equal(before[i], net->parameters()[i]), is_bad) << pair.name << ", parameter " << i;
          }
          EXPECT_EQ(scaler.current_scale(), 4);
        }
    });
}

TEST(OptimScaled, GoesWithMicroBatches) {
  run_ranks(2, [](const Group& group) {
    for (const auto& pair : optimizer_pairs()) {
      const auto trained = [&](const MakeOptimizer& make_optimizer) {
        Perceptron net;
        DistributedDataParallel model(net, group);
        const auto optimizer = make_optimizer(net->parameters());
        GradScaler scaler(model, {.init_scale = 32});
        for (int number = 1; number <= 8; ++number) {
          auto micro = accumulate(model, number, 3, 8);
          auto batch = Batch::of_step(number, 6).of_rank(group->rank(), 2);
          if (number == 4 && group->rank() == 1) batch.input[0][0] = kInfinity;
          micro.backward(scaler.scale(squared_error(model(batch.input), batch.target)));
          if (!micro.steps()) continue;
          EXPECT_EQ(scaler.step(*optimizer), number != 6) << pair.name;
          scaler.update();
          optimizer->zero_grad();
        }
        EXPECT_EQ(scaler.current_scale(), 16);
        return values_of(*net);
      };
      const auto theirs = trained(pair.theirs);
      expect_equal_values(*group, trained(pair.ours), theirs, values_of(PerceptronImpl()));
    }
  });
}

}  // namespace
}  // namespace ddp
