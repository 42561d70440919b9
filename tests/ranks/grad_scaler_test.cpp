// A scale that is the same on all ranks, whichever of them has a gradient that is not finite.

#include "ddp/grad_scaler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "ddp/accumulate.hpp"
#include "ddp/checkpoint.hpp"
#include "ddp/clip_grad.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/optim.hpp"
#include "support/backward_errors.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Four weights [2] that share a bucket, or have one each. Gradients are `factors` [4], the same for both elements.
struct WeightsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& factors) {
    torch::Tensor sum = torch::zeros({}, torch::kDouble);
    for (std::int64_t i = 0; i < 4; ++i) sum = sum + (weights[i] * factors[i]).sum();
    return sum;
  }
  std::vector<torch::Tensor> weights = [this] {
    std::vector<torch::Tensor> all;
    for (int i = 0; i < 4; ++i)
      all.push_back(register_parameter("w" + std::to_string(i), torch::zeros({2}, torch::kDouble)));
    return all;
  }();
};
TORCH_MODULE(Weights);

torch::Tensor factors_with(std::int64_t index, double bad) {
  auto factors = torch::ones({4}, torch::kDouble);
  factors[index] = bad;
  return factors;
}

TEST(GradScaler, SkipsTheStepOnAllRanksWhereOneHasAnInfiniteGradient) {
  for (int world = 1; world <= 3; ++world)
    for (const auto& options : {DistributedDataParallelOptions{}, kBucketEach})
      run_ranks(world, [&](const Group& group) {
        Weights net;
        DistributedDataParallel model(net, group, options);
        torch::optim::SGD optimizer(model->parameters(), 1.0);
        GradScaler scaler(model, {.init_scale = 1024});
        const double bad = group->rank() + 1 == world ? kInfinity : 1;
        scaler.scale(model(factors_with(1, bad))).backward();
        for (std::int64_t i = 0; i < 4; ++i)
          EXPECT_EQ(all_finite({net->weights[i].grad()}), i != 1) << "its neighbours in the bucket";
        EXPECT_FALSE(scaler.step(optimizer));
        scaler.update();
        EXPECT_EQ(scaler.current_scale(), 512);
        EXPECT_EQ(net->weights[0].detach().abs().sum().item<double>(), 0);

        optimizer.zero_grad();
        scaler.scale(model(torch::ones({4}, torch::kDouble))).backward();
        EXPECT_TRUE(scaler.step(optimizer));
        scaler.update();
        for (const auto& weight : net->weights) EXPECT_TRUE(torch::equal(weight, torch::full_like(weight, -1)));
      });
}

// Ranks disagree on their own: each has its infinite gradients in steps of its own.
TEST(GradScaler, HasOneScaleOnAllRanksOverARunWithRandomInfinities) {
  run_ranks(3, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group, kBucketEach);
    const auto optimizer = sgd_with_momentum(model->parameters());
    GradScaler scaler(model, {.init_scale = 64, .growth_interval = 2});
    auto scales = torch::zeros({40}, torch::kDouble);
    for (int step = 0; step < 40; ++step) {
      auto batch = Batch::of_step(step, 6).of_rank(group->rank(), 3);
      if ((step * 7 + group->rank() * 5) % 11 == 0) batch.input[0][0] = step % 2 == 0 ? kInfinity : std::nan("");
      optimizer->zero_grad();
      scaler.scale(squared_error(model(batch.input), batch.target)).backward();
      scaler.unscale_(*optimizer);
      clip_grad_norm_(model->parameters(), 0.5);
      scaler.step(*optimizer);
      scaler.update();
      scales[step] = scaler.current_scale();
    }
    EXPECT_TRUE(same_on_all_ranks(*group, scales));
    for (const auto& parameter : net->parameters()) {
      EXPECT_TRUE(same_on_all_ranks(*group, parameter));
      EXPECT_TRUE(all_finite({parameter}));
    }
    EXPECT_GT(scales.max().item<double>(), scales.min().item<double>());
  });
}

TEST(GradScaler, TrainsLikeOneProcessWithoutIt) {
  for (int world = 1; world <= 3; ++world)
    run_ranks(world, [world](const Group& group) {
      Perceptron net, reference;
      DistributedDataParallel model(net, group);
      const auto optimizer = adamw(model->parameters()), of_reference = adamw(reference->parameters());
      GradScaler scaler(model, {.init_scale = 1024, .growth_interval = 3});
      for (int step = 0; step < 8; ++step) {
        const auto batch = Batch::of_step(step, 6);
        const auto mine = batch.of_rank(group->rank(), world);
        optimizer->zero_grad();
        scaler.scale(squared_error(model(mine.input), mine.target)).backward();
        scaler.step(*optimizer);
        scaler.update();
        of_reference->zero_grad();
        squared_error(reference(batch.input), batch.target).backward();
        of_reference->step();
      }
      for (const auto& entry : net->named_parameters())
        EXPECT_TRUE(close(entry.value(), reference->named_parameters()[entry.key()], 1e-10)) << entry.key();
    });
}

TEST(GradScaler, AsksTheOtherRanksWhereAParameterIsNotAveraged) {
  run_ranks(3, [](const Group& group) {
    Weights net;
    DistributedDataParallel model(net, group, {.ignored_parameters = {"w2"}});
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    GradScaler scaler(model, {.init_scale = 8});
    EXPECT_FALSE(model->averages(net->weights[2]));
    scaler.scale(model(factors_with(2, group->rank() == 1 ? kInfinity : 1))).backward();
    EXPECT_EQ(all_finite({net->weights[2].grad()}), group->rank() != 1);
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), 4);
  });
}

TEST(GradScaler, OfRanksThatDisagreeIsAnErrorOnAll) {
  run_ranks(3, [](const Group& group) {
    Weights net;
    DistributedDataParallel model(net, group);
    GradScaler scaler(model, {.init_scale = group->rank() == 2 ? 512.0 : 1024.0});
    const auto text = gradient_error([&] { scaler.scale(model(torch::ones({4}, torch::kDouble))).backward(); });
    expect_contains(text, {"scaled their losses differently", "by 1024 on rank 0", "by 512 on rank 2", "update()"});
    for (const auto& weight : net->weights) EXPECT_FALSE(weight.grad().defined());
    // The wrapper is whole.
    GradScaler same(model, {.init_scale = 4});
    same.scale(model(torch::ones({4}, torch::kDouble))).backward();
    EXPECT_EQ(net->weights[0].grad()[0].item<double>(), 4);
  });
}

TEST(GradScaler, ThatOnlyOneRankUsesIsAnErrorOnAll) {
  run_ranks(2, [](const Group& group) {
    DistributedDataParallel model(Weights(), group);
    GradScaler scaler(model, {.enabled = group->rank() == 0});
    const auto text = gradient_error([&] { scaler.scale(model(torch::ones({4}, torch::kDouble))).backward(); });
    expect_contains(text, {"by 65536 on rank 0", "not at all on rank 1"});
  });
}

TEST(GradScaler, ThatOneRankForgetsInALaterStepIsAnErrorOnAll) {
  run_ranks(2, [](const Group& group) {
    DistributedDataParallel model(Weights(), group);
    GradScaler scaler(model);
    const auto loss = [&] { return model(torch::ones({4}, torch::kDouble)); };
    scaler.scale(loss()).backward();
    const auto text = gradient_error([&] { (group->rank() == 0 ? scaler.scale(loss()) : loss() * 65536).backward(); });
    expect_contains(text, {"by 65536 on rank 0", "not at all on rank 1"});
  });
}

// R38's neighbour: ranks leave their loops at different steps, one of which was skipped.
TEST(GradScaler, StaysTheSameWithJoin) {
  run_ranks(3, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group);
    const auto optimizer = sgd_with_momentum(model->parameters());
    GradScaler scaler(model, {.init_scale = 64, .growth_interval = 2});
    const auto step_of_optimizer = [&] {
      scaler.step(*optimizer);
      scaler.update();
    };
    for (int epoch = 0; epoch < 2; ++epoch) {
      auto join = model->join();
      for (int step = 0; step < 2 + 2 * group->rank(); ++step) {
        auto batch = Batch::of_step(10 * epoch + step, 6).of_rank(group->rank(), 3);
        if (step == 4) batch.input[0][0] = kInfinity;
        optimizer->zero_grad();
        scaler.scale(squared_error(model(batch.input), batch.target)).backward();
        step_of_optimizer();
      }
      join.finish(step_of_optimizer);
      EXPECT_TRUE(same_on_all_ranks(*group, torch::tensor(scaler.current_scale())));
    }
    for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_on_all_ranks(*group, parameter));
    EXPECT_NE(scaler.current_scale(), 64);
  });
}

std::unique_ptr<torch::optim::Optimizer> fused_adamw(std::vector<at::Tensor> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions(0.01));
}

// Six steps, or three of them in a run that saves and three in one that loads; the fourth has an infinite gradient.
std::vector<torch::Tensor> after_six_steps(const Group& group, const MakeOptimizer& make_optimizer, bool in_two_runs) {
  const TempFolder folder;  // rank 0's counts
  auto path = (folder / "run.pt").string();
  path = group->broadcast_bytes(path);
  std::vector<torch::Tensor> result;
  for (int first = 0; first < 6; first += in_two_runs ? 3 : 6) {
    Perceptron net(first + 7);
    DistributedDataParallel model(net, group);
    const auto optimizer = make_optimizer(model->parameters());
    GradScaler scaler(model, {.init_scale = 64, .growth_interval = 2});
    Checkpoint checkpoint(path, model, *optimizer);
    checkpoint.add("scaler", scaler.state());
    EXPECT_EQ(checkpoint.load_or_start().step, first);
    for (int step = first; step < (in_two_runs ? first + 3 : 6); ++step) {
      auto batch = Batch::of_step(step, 6).of_rank(group->rank(), group->size());
      if (step == 3 && group->rank() == 1) batch.input[0][0] = kInfinity;
      optimizer->zero_grad();
      scaler.scale(squared_error(model(batch.input), batch.target)).backward();
      scaler.step(*optimizer);
      scaler.update();
    }
    checkpoint.save({.step = first + 3});
    result = net->parameters();
    result.push_back(torch::tensor(scaler.current_scale()));
  }
  return result;
}

TEST(GradScaler, GoesOnInAnotherRunToTheBit) {  // R56
  run_ranks(2, [](const Group& group) {
    for (const auto& make : {adamw, fused_adamw}) {
      const auto straight = after_six_steps(group, make, false), resumed = after_six_steps(group, make, true);
      for (std::size_t i = 0; i < straight.size(); ++i) EXPECT_TRUE(torch::equal(straight[i], resumed[i])) << i;
      EXPECT_NE(straight.back().item<double>(), 64);
    }
  });
}

TEST(GradScaler, GoesWithMicroBatches) {
  run_ranks(2, [](const Group& group) {
    Weights net;
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    GradScaler scaler(model, {.init_scale = 32});
    for (int number = 1; number <= 3; ++number) {
      auto micro = accumulate(model, number, 2, 3);
      // One rank's first micro-batch overflows; the second step is sound.
      micro.backward(scaler.scale(model(factors_with(0, number == 1 && group->rank() == 1 ? kInfinity : 1))));
      if (!micro.steps()) continue;
      EXPECT_EQ(scaler.step(optimizer), number == 3);
      scaler.update();
      optimizer.zero_grad();
    }
    EXPECT_EQ(scaler.current_scale(), 16);
    EXPECT_TRUE(torch::equal(net->weights[0], torch::full_like(net->weights[0], -1)));
  });
}

}  // namespace
}  // namespace ddp
