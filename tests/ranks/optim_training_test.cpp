// The optimizers of optim.hpp behind every kind of backward: the weights that LibTorch's optimizers give.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <vector>

#include "ddp/accumulate.hpp"
#include "ddp/join.hpp"
#include "ddp/rate_scheduler.hpp"
#include "support/optimizers.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Optimizer = torch::optim::Optimizer;

constexpr int kSteps = 5;

auto make_perceptron() { return std::make_shared<PerceptronImpl>(); }
auto make_routes() { return std::make_shared<RoutesImpl>(3); }

at::Tensor loss_of(auto& model, const ProcessGroup& group, std::int64_t step) {
  const auto mine = Batch::of_step(step, 6).of_rank(group.rank(), group.size());
  return squared_error(model(mine.input), mine.target);
}

TEST(OptimTraining, OfTwoGroupsIsLibTorchs) {
  expect_both_train_alike({}, make_perceptron, [](auto& model, Optimizer& optimizer, auto&, ProcessGroup& group) {
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_of(model, group, step).backward();
      optimizer.step();
    }
  });
}

TEST(OptimTraining, UnderNoSyncIsLibTorchs) {
  expect_both_train_alike({}, make_perceptron, [](auto& model, Optimizer& optimizer, auto&, ProcessGroup& group) {
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad(step % 2 == 0);
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<NoSync> guard;
        if (micro < 2) guard.emplace(model->no_sync());
        loss_of(model, group, 3 * step + micro).backward();
      }
      optimizer.step();
    }
  });
}

TEST(OptimTraining, WithAccumulatedMicroBatchesAndASchedulerIsLibTorchs) {
  expect_both_train_alike({}, make_perceptron, [](auto& model, Optimizer& optimizer, auto&, ProcessGroup& group) {
    RateScheduler scheduler(optimizer, schedule::warm_up(2, schedule::cosine(3, 0.1)));
    for (int number = 1; number <= 8; ++number) {  // steps of 3, 3 and 2
      auto micro = accumulate(model, number, 3, 8);
      if (micro.begins()) optimizer.zero_grad();
      micro.backward(loss_of(model, group, number));
      if (!micro.steps()) continue;
      optimizer.step();
      scheduler.step();
    }
    EXPECT_EQ(scheduler.steps(), 3);
  });
}

// Ranks and steps use other layers; the last one is nobody's before the third step, so that it has no state till then.
TEST(OptimTraining, WithUnusedParametersIsLibTorchs) {
  expect_both_train_alike({.find_unused_parameters = true}, make_routes,
                          [](auto& model, Optimizer& optimizer, auto& net, ProcessGroup& group) {
                            for (int step = 0; step < kSteps; ++step) {
                              optimizer.zero_grad(step % 2 == 0);
                              const Turn turn{group.rank(), step, 0};
                              const int second = step < 3 ? (group.rank() + step) % 2 : 2;
                              model(turn.input(), std::vector<int>{0, second}).pow(2).mean().backward();
                              EXPECT_EQ(net.layers[2]->weight.grad().defined(), step >= 3);
                              optimizer.step();
                            }
                          });
}

TEST(OptimTraining, WithAStaticGraphIsLibTorchs) {
  expect_both_train_alike({.static_graph = true}, make_routes,
                          [](auto& model, Optimizer& optimizer, auto&, ProcessGroup& group) {
                            for (int step = 0; step < kSteps; ++step) {
                              optimizer.zero_grad();
                              const Turn turn{group.rank(), step, 0};
                              model(turn.input(), std::vector<int>{2, 0}).pow(2).mean().backward();
                              optimizer.step();
                            }
                          });
}

TEST(OptimTraining, OfRanksWithUnevenBatchesIsLibTorchs) {
  expect_both_train_alike({}, make_perceptron, [](auto& model, Optimizer& optimizer, auto&, ProcessGroup& group) {
    for (int epoch = 0; epoch < 2; ++epoch) {
      auto join = model->join();
      for (int step = 0; step < 1 + 2 * ((group.rank() + epoch) % group.size()); ++step) {
        optimizer.zero_grad();
        loss_of(model, group, 10 * epoch + step).backward();
        optimizer.step();
      }
      join.finish([&] { optimizer.step(); });
    }
  });
}

TEST(OptimTraining, LeavesFrozenParametersAsTheyAreEvenWithWeightDecay) {
  const auto make = [] {
    const auto net = make_perceptron();
    for (auto& parameter : net->layers[1]->parameters()) parameter.set_requires_grad(false);
    return net;
  };
  expect_both_train_alike({}, make, [](auto& model, Optimizer& optimizer, auto& net, ProcessGroup& group) {
    const auto before = values_of(*net.layers[1]);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_of(model, group, step).backward();
      optimizer.step();
    }
    const auto after = values_of(*net.layers[1]);
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(torch::equal(before[i], after[i])) << i;
  });
}

// Layers of float32 beside layers of float64, which know nothing of the others' rounding.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    torch::manual_seed(3);
    single = register_module("single", torch::nn::Linear(8, 4));
    precise = register_module("precise", torch::nn::Linear(8, 4));
    again = register_module("again", torch::nn::Linear(4, 4));
    precise->to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::tanh(again(torch::tanh(single(x.to(torch::kFloat))))).to(torch::kDouble) + precise(x);
  }
  torch::nn::Linear single{nullptr}, precise{nullptr}, again{nullptr};
};

TEST(OptimTraining, OfTwoDtypesIsLibTorchs) {
  const auto make = [] { return std::make_shared<MixedImpl>(); };
  expect_both_train_alike({}, make, [](auto& model, Optimizer& optimizer, auto&, ProcessGroup& group) {
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto mine = Batch::of_step(step, 6).of_rank(group.rank(), group.size());
      (model(mine.input) * mine.target).mean().backward();
      optimizer.step();
    }
  });
}

}  // namespace
}  // namespace ddp
