// Checkpoints of the optimizers in optim.hpp, which are files of LibTorch's of the same kind.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/error.hpp"
#include "ddp/optim.hpp"
#include "ddp/state_dict.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

using namespace testing;

/// Layers in two parameter groups, and one that has no gradient before the fourth step.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::uint64_t seed, torch::Dtype dtype) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(4, 7));
    late = register_module("late", torch::nn::Linear(7, 7));
    last = register_module("last", torch::nn::Linear(7, 3));
    to(dtype);
  }
  torch::Tensor forward(const torch::Tensor& x, bool uses_late) {
    const auto hidden = torch::tanh(first(x));
    return last(uses_late ? hidden + late(hidden) : hidden);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups() const {
    return {first->parameters(), std::vector<at::Tensor>{late->weight, late->bias, last->weight, last->bias}};
  }
  torch::nn::Linear first{nullptr}, late{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

constexpr std::int64_t kStop = 3, kEnd = 6;

void train(Net& net, torch::optim::Optimizer& optimizer, std::int64_t begin, std::int64_t end) {
  for (auto step = begin; step < end; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
    const auto x = torch::randn({8, 4}, net->first->weight.options().requires_grad(false));
    optimizer.zero_grad();
    net->forward(x, step >= kStop).pow(2).mean().backward();
    optimizer.step();
  }
}

template <class Optimizer, class Options>
Optimizer optimizer_of(const Net& net, const Options& options) {
  auto groups = net->groups();
  groups[1].set_options(std::make_unique<Options>(options));
  groups[1].options().set_lr(options.lr() / 2);
  return Optimizer(groups, options);
}

/// A run that Loader goes on with from Saver's file, and one that Saver makes alone.
template <class Saver, class Loader, class Options>
void expect_to_go_on(const Options& options, torch::Dtype dtype, double tolerance) {
  const TempFolder folder;
  Net straight(1, dtype), resumed(2, dtype);
  auto saver = optimizer_of<Saver>(straight, options);
  train(straight, saver, 0, kStop);
  Checkpoint(folder / "run.pt", straight, saver).save({.step = kStop});
  train(straight, saver, kStop, kEnd);
  auto loader = optimizer_of<Loader>(resumed, Options(77));
  EXPECT_EQ(Checkpoint(folder / "run.pt", resumed, loader).load_or_start().step, kStop);
  train(resumed, loader, kStop, kEnd);
  const auto expected = straight->named_parameters();
  for (const auto& entry : resumed->named_parameters()) {
    const auto difference = (entry.value() - expected[entry.key()]).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << entry.key();
  }
}

template <class LibTorchs, class Options>
void expect_to_resume(const Options& options) {
  using Fused = optim::Fused<LibTorchs>;
  for (const auto dtype : {torch::kFloat, torch::kDouble}) expect_to_go_on<Fused, Fused>(options, dtype, 0);
  expect_to_go_on<LibTorchs, Fused>(options, torch::kDouble, 1e-13);
  expect_to_go_on<Fused, LibTorchs>(options, torch::kDouble, 1e-13);
}

TEST(CheckpointOfOptim, GoesOnToTheBitAndAlsoByLibTorchsOptimizerOrWithItsFile) {  // R56
  expect_to_resume<torch::optim::SGD>(optim::SGDOptions(0.1).momentum(0.9));
  expect_to_resume<torch::optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1));
  expect_to_resume<torch::optim::Adam>(optim::AdamOptions(0.01).weight_decay(0.1));
  expect_to_resume<torch::optim::AdamW>(optim::AdamWOptions(0.01).amsgrad(true));
}

template <class Saver, class Loader>
std::string refusal() {
  const TempFolder folder;
  Net net(1, torch::kFloat);
  Saver saver(net->parameters());
  Checkpoint(folder / "run.pt", net, saver).save({});
  Loader loader(net->parameters());
  Checkpoint checkpoint(folder / "run.pt", net, loader);
  return error_of<CheckpointError>([&] { checkpoint.load_or_start(); });
}

TEST(CheckpointOfOptim, OfAnotherKindIsRefusedByLibTorchsNames) {
  const std::string words = "it holds the state of torch::optim::AdamW where the run here has torch::optim::Adam;";
  expect_contains(refusal<optim::AdamW, optim::Adam>(), {words});
  expect_contains(refusal<optim::AdamW, torch::optim::Adam>(), {words});
  expect_contains(refusal<torch::optim::AdamW, optim::Adam>(), {words});
}

TEST(CheckpointOfOptim, IsAStateDictForLibTorchsOptimizerToo) {
  Net net(1, torch::kDouble), other(1, torch::kDouble);
  auto ours = optimizer_of<optim::AdamW>(net, optim::AdamWOptions(0.01));
  auto theirs = optimizer_of<torch::optim::AdamW>(other, optim::AdamWOptions(77));
  train(net, ours, 0, kStop);
  load_state_dict(*other, state_dict(*net));
  load_state_dict(theirs, state_dict(ours));
  train(net, ours, kStop, kEnd);
  train(other, theirs, kStop, kEnd);
  EXPECT_TRUE(torch::allclose(net->first->weight, other->first->weight, 0, 1e-13));
}

}  // namespace
}  // namespace ddp
