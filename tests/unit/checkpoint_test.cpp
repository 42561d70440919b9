#include "ddp/checkpoint.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/distributed_sampler.hpp"
#include "ddp/error.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using testing::contains;
using testing::contents;
using testing::error_of;
using testing::overwrite;
using testing::TempFolder;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = 5) {
    layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(4, width).bias(false)));
    layers->push_back(torch::nn::BatchNorm1d(width));
    layers->push_back(torch::nn::Functional(torch::tanh));
    layers->push_back(torch::nn::Linear(width, 3));
    register_module("layers", layers);
    unused = register_parameter("unused", torch::ones({2}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }

  torch::nn::Sequential layers;
  torch::Tensor unused;  // never has a gradient
};
TORCH_MODULE(Net);

std::vector<torch::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const auto& tensor : module.parameters()) values.push_back(tensor.detach().clone());
  for (const auto& tensor : module.buffers()) values.push_back(tensor.detach().clone());
  return values;
}

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << "tensor " << i;
}

void train(Net& net, torch::optim::Optimizer& optimizer, int first_step, int steps) {
  for (int step = first_step; step < first_step + steps; ++step) {
    torch::manual_seed(1000 + step);
    const auto x = torch::randn({8, 4}, net->parameters()[0].options().requires_grad(false));
    optimizer.zero_grad();
    net->forward(x).pow(2).mean().backward();
    optimizer.step();
  }
}

std::vector<torch::optim::OptimizerParamGroup> two_groups(const Net& net) {
  const auto all = net->parameters();
  return {std::vector<torch::Tensor>(all.begin(), all.begin() + 2),
          std::vector<torch::Tensor>(all.begin() + 2, all.end())};
}

TEST(Checkpoint, StartsANewRunWhereThereIsNoFile) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Checkpoint checkpoint(path, net, optimizer);
  const auto progress = checkpoint.load_or_start();
  EXPECT_EQ(progress.epoch, 0);
  EXPECT_EQ(progress.step, 0);
  EXPECT_TRUE(folder.files().empty());
}

TEST(Checkpoint, BringsBackModuleSamplerAndProgress) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net saved;
  torch::optim::SGD optimizer(saved->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  DistributedSampler sampler(10, {.seed = 7});
  train(saved, optimizer, 0, 2);
  sampler.set_epoch(4);
  Checkpoint(path, saved, optimizer, sampler).save({.epoch = 5, .step = 123});
  EXPECT_EQ(folder.files(), std::vector<std::string>{"run.pt"});

  Net loaded;
  torch::optim::SGD other(loaded->parameters(), torch::optim::SGDOptions(0.5).momentum(0.1));
  DistributedSampler other_sampler(10, {.seed = 8});
  const auto progress = Checkpoint(path, loaded, other, other_sampler).load_or_start();
  EXPECT_EQ(progress.epoch, 5);
  EXPECT_EQ(progress.step, 123);
  expect_equal(values_of(*loaded), values_of(*saved));
  EXPECT_EQ(other_sampler.epoch(), 4U);
  EXPECT_EQ(other_sampler.seed(), 7U);
  EXPECT_EQ(static_cast<const torch::optim::SGDOptions&>(other.param_groups()[0].options()).momentum(), 0.9);
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Net&)>;

void expect_exact_resume(const fs::path& path, const MakeOptimizer& make) {
  torch::manual_seed(1);
  Net straight;
  const auto optimizer = make(straight);
  train(straight, *optimizer, 0, 3);
  Checkpoint(path, straight, *optimizer).save({.step = 3});
  train(straight, *optimizer, 3, 3);

  torch::manual_seed(2);
  Net resumed;
  const auto fresh = make(resumed);
  const auto progress = Checkpoint(path, resumed, *fresh).load_or_start();
  train(resumed, *fresh, static_cast<int>(progress.step), 3);
  expect_equal(values_of(*resumed), values_of(*straight));
}

TEST(Checkpoint, ResumesSgdWithMomentumToTheBit) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  expect_exact_resume(path, [](const Net& net) {
    return std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}

TEST(Checkpoint, ResumesAdamToTheBit) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  expect_exact_resume(path,
                      [](const Net& net) { return std::make_unique<torch::optim::Adam>(net->parameters(), 0.01); });
}

TEST(Checkpoint, ResumesAdamWWithAmsgradAndTwoGroupsToTheBit) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  expect_exact_resume(path, [](const Net& net) {
    auto groups = two_groups(net);
    groups[1].set_options(std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.3).amsgrad(true)));
    return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.01).amsgrad(true));
  });
}

TEST(Checkpoint, ResumesRmspropAndAdagradToTheBit) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  expect_exact_resume(path, [](const Net& net) {
    return std::make_unique<torch::optim::RMSprop>(net->parameters(), torch::optim::RMSpropOptions(0.01).momentum(0.5));
  });
  expect_exact_resume(path,
                      [](const Net& net) { return std::make_unique<torch::optim::Adagrad>(net->parameters(), 0.05); });
}

TEST(Checkpoint, ForgetsWhatAnUsedOptimizerKnewBefore) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpoint checkpoint(path, net, optimizer);
  checkpoint.save({});
  train(net, optimizer, 0, 1);
  ASSERT_FALSE(optimizer.state().empty());
  checkpoint.load_or_start();
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Checkpoint, LoadsInPlace) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpoint checkpoint(path, net, optimizer);
  train(net, optimizer, 0, 1);
  checkpoint.save({});
  const auto saved = values_of(*net);
  train(net, optimizer, 1, 1);

  const auto weight = net->parameters()[1];
  const auto gradient = weight.grad();
  const auto* memory = weight.data_ptr();
  const auto& options = optimizer.param_groups()[0].options();
  checkpoint.load_or_start();
  EXPECT_EQ(weight.data_ptr(), memory);
  EXPECT_TRUE(weight.is_leaf() && weight.requires_grad());
  EXPECT_TRUE(weight.grad().is_same(gradient));
  EXPECT_EQ(&optimizer.param_groups()[0].options(), &options);
  expect_equal(values_of(*net), saved);
}

TEST(Checkpoint, GivesTheOptimizerStateOfItsParametersDtype) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  net->to(torch::kDouble);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpoint checkpoint(path, net, optimizer);
  train(net, optimizer, 0, 1);
  checkpoint.save({});
  checkpoint.load_or_start();
  auto& state = *optimizer.state().at(net->parameters()[1].unsafeGetTensorImpl());
  const auto& buffer = static_cast<torch::optim::SGDParamState&>(state).momentum_buffer();
  EXPECT_EQ(buffer.scalar_type(), torch::kDouble);
  EXPECT_EQ(buffer.device(), net->parameters()[1].device());
}

TEST(Checkpoint, WritesWhatTorchLoadReadsIntoThePlainModule) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net saved;
  torch::optim::SGD optimizer(saved->parameters(), 0.1);
  train(saved, optimizer, 0, 1);
  Checkpoint(path, saved, optimizer).save({});
  Net loaded;
  torch::load(loaded, path.string());
  expect_equal(values_of(*loaded), values_of(*saved));
}

TEST(Checkpoint, WritesNoMoreThanTheParameterOfALargeStorage) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  auto module = std::make_shared<torch::nn::Module>();
  module->register_parameter("small", torch::zeros({1 << 20}).slice(0, 5, 10));
  Checkpoint(path, module).save({});
  EXPECT_LT(fs::file_size(path), 1U << 16);
}

TEST(Checkpoint, NamesTheDifferencesToAnotherModelAndLoadsNothing) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net saved(5);
  torch::optim::SGD saved_optimizer(saved->parameters(), 0.1);
  Checkpoint(path, saved, saved_optimizer).save({});
  Net net(6);
  net->register_buffer("extra", torch::zeros({1}));
  const auto before = values_of(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Checkpoint checkpoint(path, net, optimizer);
  const auto text = error_of<CheckpointError>([&] { checkpoint.load_or_start(); });
  EXPECT_TRUE(contains(text, "layers.0.weight is Float [5, 4] in the file and Float [6, 4] here"));
  EXPECT_TRUE(contains(text, "extra is not in the file"));
  expect_equal(values_of(*net), before);
}

TEST(Checkpoint, NamesWhatOnlyTheFileHas) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net saved;
  saved->register_parameter("gone", torch::zeros({1}));
  Checkpoint(path, saved).save({});
  Net net;
  const auto text = error_of<CheckpointError>([&] { Checkpoint(path, net).load_or_start(); });
  EXPECT_TRUE(contains(text, "gone is only in the file"));
}

TEST(Checkpoint, RefusesTheStateOfAnotherOptimizer) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  torch::optim::Adam adam(net->parameters(), 0.1);
  Checkpoint(path, net, adam).save({});
  train(net, adam, 0, 1);
  const auto before = values_of(*net);
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  const auto text = error_of<CheckpointError>([&] { Checkpoint(path, net, adamw).load_or_start(); });
  EXPECT_TRUE(contains(text, "torch::optim::Adam where the run here has torch::optim::AdamW"));
  expect_equal(values_of(*net), before);
  EXPECT_NE(error_of<CheckpointError>([&] { Checkpoint(path, net).load_or_start(); }), "no error");
}

TEST(Checkpoint, RefusesAnOptimizerOverOtherParameters) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  torch::optim::SGD one_group(net->parameters(), 0.1);
  Checkpoint(path, net, one_group).save({});
  torch::optim::SGD groups(two_groups(net), torch::optim::SGDOptions(0.1));
  const auto text = error_of<CheckpointError>([&] { Checkpoint(path, net, groups).load_or_start(); });
  EXPECT_TRUE(contains(text, "an optimizer of 1 parameter groups, here are 2"));
}

TEST(Checkpoint, RefusesASamplersPositionThatDoesNotFitAndLoadsNothing) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  DistributedSampler sampler(10, {.shuffle = false});
  sampler.reset();
  sampler.next(4);
  Checkpoint(path, net, optimizer, sampler).save({});
  train(net, optimizer, 0, 1);
  const auto before = values_of(*net);
  DistributedSampler larger(12, {.shuffle = false});
  const auto text = error_of<CheckpointError>([&] { Checkpoint(path, net, optimizer, larger).load_or_start(); });
  EXPECT_TRUE(contains(text, "sample 4"));
  expect_equal(values_of(*net), before);
  EXPECT_FALSE(optimizer.state().empty());
}

TEST(Checkpoint, NoticesEveryDamagedByteAndEveryMissingEnd) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  Checkpoint checkpoint(path, net);
  checkpoint.save({});
  const auto whole = contents(path);
  for (std::size_t i = 0; i < whole.size(); i += 97) {
    auto damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    overwrite(path, damaged);
    EXPECT_TRUE(contains(error_of<CheckpointError>([&] { checkpoint.load_or_start(); }), "run.pt")) << "byte " << i;
    overwrite(path, whole.substr(0, i));
    EXPECT_TRUE(contains(error_of<CheckpointError>([&] { checkpoint.load_or_start(); }), "run.pt")) << i << " bytes";
  }
  overwrite(path, whole);
  checkpoint.load_or_start();
}

TEST(Checkpoint, RefusesForeignFilesAndFolders) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  torch::save(net, path.string());
  const auto text = error_of<CheckpointError>([&] { Checkpoint(path, net).load_or_start(); });
  EXPECT_TRUE(contains(text, "it is no checkpoint, but a module as torch::save() writes it"));
  Checkpoint at_folder(folder.path(), net);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { at_folder.load_or_start(); }), "is not a file"));
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { at_folder.save({}); }), "is not a file"));
  EXPECT_EQ(folder.files(), std::vector<std::string>{"run.pt"});
}

TEST(Checkpoint, SaysBeforeTheRunThatItsFolderIsMissing) {
  const TempFolder folder;
  Net net;
  Checkpoint checkpoint(folder / "gone/run.pt", net);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { checkpoint.load_or_start(); }), "No such file"));
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { checkpoint.save({}); }), "No such file"));
}

TEST(Checkpoint, KeepsTheOldFileWhereTheNewOneDoesNotFit) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  Checkpoint checkpoint(path, net);
  checkpoint.save({.epoch = 1});
  const auto old = contents(path);
  rlimit unlimited{};
  ::getrlimit(RLIMIT_FSIZE, &unlimited);
  const rlimit limited{.rlim_cur = 1000, .rlim_max = unlimited.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limited);
  const auto text = error_of<CheckpointError>([&] { checkpoint.save({.epoch = 2}); });
  ::setrlimit(RLIMIT_FSIZE, &unlimited);
  EXPECT_TRUE(contains(text, "File too large"));
  EXPECT_EQ(contents(path), old);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"run.pt"});
  EXPECT_EQ(checkpoint.load_or_start().epoch, 1);
}

TEST(Checkpoint, WritesOverWhatAKilledSaveHasLeft) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  Checkpoint checkpoint(path, net);
  overwrite(folder / "run.pt.tmp", std::string(1 << 20, 'x'));
  checkpoint.save({.epoch = 2});
  EXPECT_EQ(folder.files(), std::vector<std::string>{"run.pt"});
  EXPECT_EQ(checkpoint.load_or_start().epoch, 2);
}

struct Forgetful : torch::optim::Optimizer {
  using Optimizer::Optimizer;
  torch::Tensor step(LossClosure) override { return {}; }
};

TEST(Checkpoint, RefusesAnOptimizerThatDoesNotWriteItsState) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  Net net;
  Forgetful optimizer(net->parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THROW(Checkpoint(path, net, optimizer), std::logic_error);
}

}  // namespace
}  // namespace ddp
