// What goes through a checkpoint beside module and optimizer, and the optimizers with a state of their own kind.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/distributed_sampler.hpp"
#include "ddp/error.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

using namespace testing;

torch::nn::Linear net_of(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Linear(4, 3);
}

void train_step(torch::nn::Linear& net, torch::optim::Optimizer& optimizer, std::int64_t step) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + step));
  const auto input = torch::randn({8, 4});
  optimizer.step([&] {
    optimizer.zero_grad();
    auto loss = net(input).pow(2).mean();
    loss.backward();
    return loss;
  });
}

double rate_of(torch::optim::Optimizer& optimizer) { return optimizer.param_groups()[0].options().get_lr(); }

// Rates of `steps` further steps of a run that was saved after each number of them.
template <class Scheduler, class Step>
void expect_rates_to_go_on(const std::function<std::unique_ptr<Scheduler>(torch::optim::Optimizer&)>& make,
                           const Step& step) {
  constexpr int kSteps = 9;
  for (int saved_after = 0; saved_after < kSteps; ++saved_after) {
    const TempFolder folder;
    auto net = net_of(1), other = net_of(2);
    torch::optim::SGD optimizer(net->parameters(), 1.0), fresh(other->parameters(), 1.0);
    const auto scheduler = make(optimizer), resumed = make(fresh);
    Checkpoint checkpoint(folder / "run.pt", net, optimizer, *scheduler);
    for (int i = 0; i < saved_after; ++i) step(*scheduler, i);
    checkpoint.save({.step = saved_after});
    Checkpoint(folder / "run.pt", other, fresh, *resumed).load_or_start();
    for (int i = saved_after; i < kSteps; ++i) {
      step(*scheduler, i);
      step(*resumed, i);
      EXPECT_EQ(rate_of(fresh), rate_of(optimizer)) << "saved after " << saved_after << ", step " << i;
    }
    EXPECT_LT(rate_of(optimizer), 1.0);
  }
}

TEST(CheckpointParts, AStepSchedulerGoesOn) {
  expect_rates_to_go_on<torch::optim::StepLR>(
      [](auto& optimizer) { return std::make_unique<torch::optim::StepLR>(optimizer, 3, 0.5); },
      [](auto& scheduler, int) { scheduler.step(); });
}

TEST(CheckpointParts, APlateauSchedulerGoesOn) {
  using Plateau = torch::optim::ReduceLROnPlateauScheduler;
  expect_rates_to_go_on<Plateau>(
      [](auto& optimizer) {
        return std::make_unique<Plateau>(optimizer, Plateau::min, 0.5F, /*patience=*/1, 1e-4, Plateau::rel, 1);
      },
      [](auto& scheduler, int i) { scheduler.step(i == 0 ? 1.0F : 2.0F); });
}

TEST(CheckpointParts, RandomNumbersGoOn) {
  const TempFolder folder;
  const auto net = net_of(1);
  Checkpoint checkpoint(folder / "run.pt", net);
  torch::rand({3});
  torch::randn({1});  // keeps one of two for later
  checkpoint.save({});
  const auto expected = torch::randn({100});
  torch::manual_seed(5);
  checkpoint.load_or_start();
  EXPECT_TRUE(torch::equal(torch::randn({100}), expected));
}

TEST(CheckpointParts, ValuesOfTheProgramGoThrough) {
  const TempFolder folder;
  const auto net = net_of(1);
  struct Values {
    bool flag = false;
    int count = 0;
    double best = 0;
    float rate = 0;
    std::string name;
    torch::Tensor history;
    std::vector<double> losses;
    std::vector<std::int64_t> counts;
    void add_to(Checkpoint& checkpoint) {
      checkpoint.add("flag", flag);
      checkpoint.add("count", count);
      checkpoint.add("best", best);
      checkpoint.add("rate", rate);
      checkpoint.add("name", name);
      checkpoint.add("history", history);
      checkpoint.add("losses", losses);
      checkpoint.add("counts", counts);
    }
  } saved{true, -7, 0.25, 0.5F, "h\u00e4llo", torch::arange(3), {1.5, 2.5}, {4}}, loaded;
  Checkpoint first(folder / "run.pt", net), second(folder / "run.pt", net);
  saved.add_to(first);
  loaded.add_to(second);
  first.save({});
  second.load_or_start();
  EXPECT_EQ(std::tie(loaded.flag, loaded.count, loaded.best, loaded.rate, loaded.name, loaded.losses, loaded.counts),
            std::tie(saved.flag, saved.count, saved.best, saved.rate, saved.name, saved.losses, saved.counts));
  EXPECT_TRUE(torch::equal(loaded.history, torch::arange(3)));
}

TEST(CheckpointParts, AValueOfAnotherKindIsRefusedByItsName) {
  const TempFolder folder;
  const auto net = net_of(1);
  double number = 5;
  std::string text = "before";
  Checkpoint first(folder / "run.pt", net), second(folder / "run.pt", net), third(folder / "run.pt", net);
  first.add("value", number);
  first.save({});
  second.add("value", text);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { second.load_or_start(); }), "its value \"value\" is a float"));
  EXPECT_EQ(text, "before");
  third.load_or_start();
}

TEST(CheckpointParts, AnIntegerOutOfRangeIsRefused) {
  const TempFolder folder;
  const auto net = net_of(1);
  std::int64_t large = 1LL << 40;
  std::int8_t small = 3;
  Checkpoint first(folder / "run.pt", net), second(folder / "run.pt", net);
  first.add("count", large);
  first.save({});
  second.add("count", small);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { second.load_or_start(); }), "it takes an int of its range"));
  EXPECT_EQ(small, 3);
}

TEST(CheckpointParts, AnIntegerThatCannotBeReadIsNotWritten) {
  const TempFolder folder;
  const auto net = net_of(1);
  std::uint64_t large = ~std::uint64_t{0};
  Checkpoint checkpoint(folder / "run.pt", net);
  checkpoint.add("count", large);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { checkpoint.save({}); }), "an integer beyond 63 bits"));
}

TEST(CheckpointParts, ATensorThatIsNotThereYetIsAValueToo) {
  const TempFolder folder;
  const auto net = net_of(1);
  torch::Tensor none, some = torch::ones({2}), grads = torch::zeros({2}, torch::requires_grad());
  char letter = 'x';
  Checkpoint first(folder / "run.pt", net), second(folder / "run.pt", net);
  first.add("none", none);
  first.add("grads", some);
  first.add("letter", letter);
  first.save({});
  letter = 'y';
  torch::Tensor loaded = torch::ones({1});
  second.add("none", loaded);
  second.add("grads", grads);
  second.add("letter", letter);
  second.load_or_start();
  EXPECT_FALSE(loaded.defined());
  EXPECT_TRUE(torch::equal(grads, torch::ones({2})) && grads.requires_grad());
  EXPECT_EQ(letter, 'x');
}

struct Warming : torch::optim::LRScheduler {
  using LRScheduler::LRScheduler;
  std::vector<double> get_lrs() override { return {0.1 * step_count_}; }
};

TEST(CheckpointParts, OfASchedulerOfTheProgramsOwnTheStepsAreKept) {
  const TempFolder folder;
  auto net = net_of(1);
  torch::optim::SGD optimizer(net->parameters(), 1), fresh(net->parameters(), 1);
  Warming scheduler(optimizer), resumed(fresh);
  for (int i = 0; i < 3; ++i) scheduler.step();
  Checkpoint(folder / "run.pt", net, optimizer, scheduler).save({});
  ::testing::internal::CaptureStderr();
  Checkpoint(folder / "run.pt", net, fresh, resumed).load_or_start();
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStderr(), "Warming the number of its steps is kept"));
  resumed.step();
  EXPECT_EQ(rate_of(fresh), 0.1 * 3);
}

TEST(CheckpointParts, ABufferThatNothingCanBeLoadedIntoIsNotSaved) {
  const TempFolder folder;
  const auto module = std::make_shared<torch::nn::Module>();
  module->register_buffer("positions", torch::arange(4).expand({2, 4}));
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { Checkpoint(folder / "run.pt", module).save({}); }),
                       "positions was made by expand()"));
}

TEST(CheckpointParts, StateWithoutWhatTheOptimizerNeedsIsRefused) {
  const TempFolder folder;
  auto net = net_of(1);
  torch::optim::Adam optimizer(net->parameters(), 0.1);
  train_step(net, optimizer, 0);
  auto& state = *optimizer.state().at(net->bias.unsafeGetTensorImpl());
  static_cast<torch::optim::AdamParamState&>(state).exp_avg_sq(torch::Tensor());
  Checkpoint checkpoint(folder / "run.pt", net, optimizer);
  checkpoint.save({});
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { checkpoint.load_or_start(); }),
                       "optimizer.state.1 has no \"exp_avg_sq\""));
}

TEST(CheckpointParts, ASamplerThatDoesNotFitIsToldOfOnce) {
  const TempFolder folder;
  const auto net = net_of(1);
  DistributedSampler sampler(10), larger(12);
  sampler.reset();
  sampler.next(4);
  Checkpoint first(folder / "run.pt", net), second(folder / "run.pt", net);
  first.add(sampler);
  second.add(larger);
  first.save({});
  const auto text = error_of<CheckpointError>([&] { second.load_or_start(); });
  EXPECT_EQ(count(text, "rank 0 of 1"), 1) << text;
  EXPECT_EQ(count(text, ";"), 2) << text;
}

TEST(CheckpointParts, AreKeptOnce) {
  const auto net = net_of(1);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  double value = 0;
  Checkpoint checkpoint("run.pt", net, optimizer);
  EXPECT_THROW(checkpoint.add(optimizer), std::logic_error);
  checkpoint.add("value", value);
  EXPECT_THROW(checkpoint.add("value", value), std::logic_error);
}

TEST(CheckpointParts, AreAddedBeforeAnythingIsLoadedOrSaved) {
  const TempFolder folder;
  const auto net = net_of(1);
  double value = 0;
  Checkpoint checkpoint(folder / "run.pt", net);
  checkpoint.load_or_start();
  EXPECT_THROW(checkpoint.add("value", value), std::logic_error);
}

TEST(CheckpointParts, AnOptimizerOfOtherParametersIsWarnedOf) {
  const auto net = net_of(1), other = net_of(2);
  torch::optim::SGD optimizer(other->parameters(), 0.1);
  ::testing::internal::CaptureStderr();
  const Checkpoint checkpoint("run.pt", net, optimizer);
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStderr(), "2 parameters of an optimizer are not the model's"));
}

TEST(CheckpointParts, TwoOptimizersDoNotMix) {
  const TempFolder folder;
  auto net = net_of(1), other = net_of(2);
  torch::optim::SGD weight({net->weight}, torch::optim::SGDOptions(0.1).momentum(0.9)), bias({net->bias}, 0.5);
  torch::optim::SGD weight2({other->weight}, torch::optim::SGDOptions(0.2)), bias2({other->bias}, 0.2);
  Checkpoint(folder / "run.pt", net, weight, bias).save({});
  Checkpoint(folder / "run.pt", other, weight2, bias2).load_or_start();
  EXPECT_EQ(rate_of(weight2), 0.1);
  EXPECT_EQ(rate_of(bias2), 0.5);
  const auto swapped =
      error_of<CheckpointError>([&] { Checkpoint(folder / "run.pt", other, bias2, weight2).load_or_start(); });
  EXPECT_TRUE(contains(swapped, "parameter 0 of group 0 is weight, but here it is bias"));
  const auto fewer = error_of<CheckpointError>([&] { Checkpoint(folder / "run.pt", other, weight2).load_or_start(); });
  EXPECT_TRUE(contains(fewer, "it holds \"optimizer_2\", which the run here has not"));
}

TEST(CheckpointParts, ResumesLbfgsToTheBit) {
  const TempFolder folder;
  const auto options = torch::optim::LBFGSOptions(0.5).max_iter(4).history_size(3);
  auto net = net_of(1), other = net_of(2);
  torch::optim::LBFGS optimizer(net->parameters(), options), fresh(other->parameters(), options);
  for (int i = 0; i < 3; ++i) train_step(net, optimizer, i);
  Checkpoint(folder / "run.pt", net, optimizer).save({});
  Checkpoint(folder / "run.pt", other, fresh).load_or_start();
  for (int i = 3; i < 6; ++i) {
    train_step(net, optimizer, i);
    train_step(other, fresh, i);
  }
  EXPECT_TRUE(torch::equal(net->weight, other->weight));
  EXPECT_TRUE(torch::equal(net->bias, other->bias));
}

// One of the program's own: plain descent with a count.
struct Counting : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    ++count;
    return SGD::step(closure);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    SGD::save(archive);
    archive.write("count", c10::IValue(count));
  }
  void load(torch::serialize::InputArchive& archive) override {
    SGD::load(archive);
    c10::IValue saved;
    archive.read("count", saved);
    count = saved.toInt();
  }
  std::int64_t count = 0;
};

TEST(CheckpointParts, AnOptimizerOfTheProgramsOwnWritesItself) {
  const TempFolder folder;
  auto net = net_of(1), other = net_of(2);
  Counting optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Counting fresh(other->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int i = 0; i < 3; ++i) train_step(net, optimizer, i);
  Checkpoint(folder / "run.pt", net, optimizer).save({});
  Checkpoint(folder / "run.pt", other, fresh).load_or_start();
  EXPECT_EQ(fresh.count, 3);
  train_step(net, optimizer, 3);
  train_step(other, fresh, 3);
  EXPECT_TRUE(torch::equal(net->weight, other->weight));
}

TEST(CheckpointParts, StateOfAnotherShapeThanItsParameterIsRefused) {
  const TempFolder folder;
  auto net = net_of(1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train_step(net, optimizer, 0);
  auto& state = *optimizer.state().at(net->bias.unsafeGetTensorImpl());
  static_cast<torch::optim::SGDParamState&>(state).momentum_buffer(torch::zeros({5}));
  Checkpoint checkpoint(folder / "run.pt", net, optimizer);
  checkpoint.save({});
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { checkpoint.load_or_start(); }),
                       "optimizer.state.1.momentum_buffer has the shape [5] for a parameter [3]"));
}

}  // namespace
}  // namespace ddp
