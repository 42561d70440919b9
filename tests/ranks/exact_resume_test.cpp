// A run of several ranks that new processes go on with to the bit, or by another optimizer of its kind.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/optim.hpp"
#include "ddp/seed.hpp"
#include "ddp/state_dict.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

constexpr std::int64_t kStepsInAll = 6;

/// Dropout, whose masks differ between the ranks, buffers, and a layer that has no gradient before step 4.
struct DroppingImpl : torch::nn::Module {
  explicit DroppingImpl(std::uint64_t seed) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(8, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    late = register_module("late", torch::nn::Linear(6, 6));
    last = register_module("last", torch::nn::Linear(6, 4));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x, bool uses_late) {
    auto hidden = torch::dropout(torch::tanh(norm(first(x))), 0.3, is_training());
    return last(uses_late ? hidden + late(hidden) : hidden);
  }
  torch::nn::Linear first{nullptr}, late{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Dropping);

using MakeGrouped = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<torch::optim::OptimizerParamGroup>& groups)>;

void train(const std::filesystem::path& path, std::int64_t steps, std::uint64_t seed, const MakeGrouped& make) {
  run_ranks(2, [&](const Group& group) {
    Dropping net(seed);
    DistributedDataParallel model(net, group, {.find_unused_parameters = true});
    seed_all(seed, *group);
    const auto all = net->parameters();
    const auto optimizer = make({{{all[0], all[1]}}, {{all.begin() + 2, all.end()}}});
    torch::optim::StepLR scheduler(*optimizer, 2, 0.5);
    double sum = 0;
    Checkpoint checkpoint(path, model, *optimizer, scheduler);
    checkpoint.add("sum", sum);
    for (auto step = checkpoint.load_or_start().step; step < steps; ++step) {
      auto generator = at::globalContext().defaultGenerator(at::kCPU);
      const auto kept = generator.get_state();
      const auto batch = Batch::of_step(step, 8).of_rank(group->rank(), 2);
      generator.set_state(kept);
      optimizer->zero_grad();
      const auto loss = squared_error(model(batch.input, step >= 4), batch.target);
      loss.backward();
      optimizer->step();
      scheduler.step();
      sum += loss.item<double>();
    }
    checkpoint.save({.step = steps});
  });
}

/// 6 steps against 3 + 3 and 5 + 1 in new processes that begin with other weights and random numbers.
void expect_exact_resume(const MakeGrouped& make) {
  for (const std::int64_t stop : {3, 5}) {
    const TempFolder folder;
    train(folder / "straight.pt", kStepsInAll, 1, make);
    train(folder / "resumed.pt", stop, 1, make);
    train(folder / "resumed.pt", kStepsInAll, 99, make);
    EXPECT_EQ(contents(folder / "resumed.pt"), contents(folder / "straight.pt")) << "stopped after " << stop;
  }
}

TEST(ExactResume, IsGivenForSgdWithMomentum) {
  expect_exact_resume([](const auto& groups) {
    return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}
TEST(ExactResume, IsGivenForAdam) {
  expect_exact_resume(
      [](const auto& groups) { return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.01)); });
}
TEST(ExactResume, IsGivenForAdamWWithAmsgrad) {
  expect_exact_resume([](const auto& groups) {
    return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.01).amsgrad(true));
  });
}

TEST(ExactResume, IsGivenForTheFusedOptimizers) {  // R56
  expect_exact_resume(
      [](const auto& groups) { return std::make_unique<optim::SGD>(groups, optim::SGDOptions(0.1).momentum(0.9)); });
  expect_exact_resume([](const auto& groups) {
    return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(0.01).amsgrad(true));
  });
}

/// 3 steps by one optimizer and 3 by the other, against 6 by the first one, to the rounding of each.
void expect_other_goes_on(const MakeGrouped& first, const MakeGrouped& other) {
  const TempFolder folder;
  train(folder / "straight.pt", kStepsInAll, 1, first);
  train(folder / "resumed.pt", 3, 1, first);
  train(folder / "resumed.pt", kStepsInAll, 99, other);
  const auto straight = load_pt(folder / "straight.pt").toGenericDict().at("model").toGenericDict();
  const auto resumed = load_pt(folder / "resumed.pt").toGenericDict().at("model").toGenericDict();
  EXPECT_EQ(straight.size(), resumed.size());
  for (const auto& entry : straight)
    EXPECT_TRUE(close(resumed.at(entry.key()).toTensor(), entry.value().toTensor(), 1e-12)) << entry.key();
}

TEST(ExactResume, LetsAFusedOptimizerGoOnForLibTorchsAndBack) {
  // The gradients of a bias before a batch norm are rounding and nothing else, which the usual eps would blow up.
  const auto options = optim::AdamWOptions(0.01).eps(1e-3);
  const MakeGrouped theirs = [&](const auto& groups) { return std::make_unique<torch::optim::AdamW>(groups, options); };
  const MakeGrouped ours = [&](const auto& groups) { return std::make_unique<optim::AdamW>(groups, options); };
  expect_other_goes_on(theirs, ours);
  expect_other_goes_on(ours, theirs);
}

}  // namespace
}  // namespace ddp
