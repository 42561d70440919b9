#include "ddp/rate_scheduler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/error.hpp"
#include "ddp/optim.hpp"
#include "ddp/state_dict.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"
#include "unit/log_heard.hpp"

namespace ddp {
namespace {

using namespace ddp::schedule;
using testing::contains;
using testing::error_of;
using testing::heard;
using testing::TempFolder;
namespace optim = torch::optim;

using Rates = std::vector<double>;

torch::Tensor parameter() { return torch::ones({2}, torch::requires_grad()); }

Rates rates_of(const optim::Optimizer& optimizer) {
  Rates rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

optim::OptimizerParamGroup group_of(double rate) { return {{parameter()}, std::make_unique<optim::SGDOptions>(rate)}; }

TEST(RateScheduler, GivesTheFirstStepTheFirstFactorAndEachLaterOneItsOwn) {
  optim::SGD optimizer({parameter()}, 0.5);
  const auto schedule = warm_up(3, cosine(5));
  RateScheduler scheduler(optimizer, schedule);
  for (std::int64_t step = 0; step < 12; ++step) {
    EXPECT_EQ(scheduler.steps(), step);
    EXPECT_EQ(rates_of(optimizer), Rates{0.5 * schedule(step)}) << "step " << step;
    scheduler.step();
  }
  EXPECT_EQ(scheduler.base_rates(), Rates{0.5});
}

TEST(RateScheduler, ScalesEachGroupByItsOwnBaseRate) {
  optim::SGD optimizer({group_of(0.5), group_of(0.25)}, optim::SGDOptions(1));
  RateScheduler scheduler(optimizer, step_decay(1, 0.5));
  EXPECT_EQ(rates_of(optimizer), (Rates{0.5, 0.25}));
  scheduler.step();
  EXPECT_EQ(rates_of(optimizer), (Rates{0.25, 0.125}));
  EXPECT_EQ(scheduler.base_rates(), (Rates{0.5, 0.25}));
}

TEST(RateScheduler, TakesTheRateOfALaterGroupAsItsBaseRate) {
  optim::SGD optimizer({group_of(0.5)}, optim::SGDOptions(1));
  RateScheduler scheduler(optimizer, step_decay(1, 0.5));
  scheduler.step();
  optimizer.add_param_group(group_of(0.75));
  EXPECT_EQ(rates_of(optimizer), (Rates{0.25, 0.75}));
  EXPECT_EQ(scheduler.base_rates(), (Rates{0.5, 0.75}));
  scheduler.step();
  EXPECT_EQ(rates_of(optimizer), (Rates{0.125, 0.1875}));
  EXPECT_EQ(scheduler.base_rates(), (Rates{0.5, 0.75}));
}

TEST(RateScheduler, DoesNotDriftWhereTheRateIsWrittenOver) {
  optim::SGD optimizer({parameter()}, 0.5);
  RateScheduler scheduler(optimizer, step_decay(2, 0.5));
  optimizer.param_groups()[0].options().set_lr(77);
  scheduler.step();
  EXPECT_EQ(rates_of(optimizer), Rates{0.5});
}

TEST(RateScheduler, WorksWithEachOptimizerOfLibTorchAndWithTheFusedOnes) {
  const std::vector<std::shared_ptr<optim::Optimizer>> optimizers{
      std::make_shared<optim::SGD>(std::vector<torch::Tensor>{parameter()}, 0.5),
      std::make_shared<optim::Adam>(std::vector<torch::Tensor>{parameter()}, optim::AdamOptions(0.5)),
      std::make_shared<optim::AdamW>(std::vector<torch::Tensor>{parameter()}, optim::AdamWOptions(0.5)),
      std::make_shared<optim::RMSprop>(std::vector<torch::Tensor>{parameter()}, optim::RMSpropOptions(0.5)),
      std::make_shared<optim::Adagrad>(std::vector<torch::Tensor>{parameter()}, optim::AdagradOptions(0.5)),
      std::make_shared<optim::LBFGS>(std::vector<torch::Tensor>{parameter()}, optim::LBFGSOptions(0.5)),
      std::make_shared<ddp::optim::SGD>(std::vector<torch::Tensor>{parameter()}, 0.5),
      std::make_shared<ddp::optim::Adam>(std::vector<torch::Tensor>{parameter()}, optim::AdamOptions(0.5)),
      std::make_shared<ddp::optim::AdamW>(std::vector<torch::Tensor>{parameter()}, optim::AdamWOptions(0.5))};
  for (const auto& optimizer : optimizers) {
    RateScheduler scheduler(*optimizer, warm_up(1));
    EXPECT_EQ(rates_of(*optimizer), Rates{0.25});
    scheduler.step();
    EXPECT_EQ(rates_of(*optimizer), Rates{0.5});
  }
}

TEST(RateScheduler, RefusesToGoOnWithWhatDoesNotFit) {
  optim::SGD optimizer({parameter()}, 0.5);
  RateScheduler scheduler(optimizer, constant());
  EXPECT_THROW(scheduler.restore(-1, {0.5}), std::invalid_argument);
  EXPECT_THROW(scheduler.restore(std::int64_t{1} << 31, {0.5}), std::invalid_argument);
  const auto error = error_of<std::invalid_argument>([&] { scheduler.restore(1, {0.5, 0.5}); });
  EXPECT_TRUE(contains(error, "was given 2 base rates for 1 parameter groups"));
  EXPECT_EQ(scheduler.steps(), 0);
}

/// A line that is fitted, with everything that one run has.
template <class AdamW>
struct TrainingBy {
  explicit TrainingBy(const std::filesystem::path& path, double base_rate = 0.01)
      : optimizer({{{net->weight}, std::make_unique<optim::AdamWOptions>(base_rate)},
                   {{net->bias}, std::make_unique<optim::AdamWOptions>(base_rate / 2)}},
                  optim::AdamWOptions(base_rate)),
        scheduler(optimizer, warm_up(4, cosine(6, 0.1))),
        checkpoint(path, net, scheduler, optimizer) {}

  /// The rates of each step that it makes.
  std::vector<Rates> train_until(std::int64_t last_step) {
    std::vector<Rates> rates;
    for (auto step = checkpoint.load_or_start().step; step < last_step; ++step) {
      rates.push_back(rates_of(optimizer));
      torch::manual_seed(step);
      optimizer.zero_grad();
      net->forward(torch::randn({8, 3})).pow(2).mean().backward();
      optimizer.step();
      scheduler.step();
    }
    checkpoint.save({.step = last_step});
    return rates;
  }

  torch::nn::Linear net{3, 2};
  AdamW optimizer;
  RateScheduler scheduler;
  Checkpoint checkpoint;
};
using Training = TrainingBy<optim::AdamW>;
using FusedTraining = TrainingBy<ddp::optim::AdamW>;

/// 12 steps against those before and after a stop. The scheduler is given before the optimizer, whose rates it sets.
template <class AnyTraining>
void expect_exact_resume_of(std::int64_t stop) {
  const TempFolder folder;
  torch::manual_seed(5);
  AnyTraining straight(folder / "straight.pt");
  torch::manual_seed(5);
  AnyTraining before(folder / "resumed.pt");
  const auto rates = straight.train_until(12);
  before.train_until(stop);
  AnyTraining after(folder / "resumed.pt");
  EXPECT_EQ(after.train_until(12), std::vector<Rates>(rates.begin() + stop, rates.end()));
  EXPECT_TRUE(torch::equal(after.net->weight, straight.net->weight));
  EXPECT_EQ(testing::contents(folder / "resumed.pt"), testing::contents(folder / "straight.pt"));
}

void expect_exact_resume(std::int64_t stop) {
  expect_exact_resume_of<Training>(stop);
  expect_exact_resume_of<FusedTraining>(stop);
}

TEST(RateScheduler, GoesOnToTheBitInsideTheWarmUp) { expect_exact_resume(2); }
TEST(RateScheduler, GoesOnToTheBitInsideTheCosine) { expect_exact_resume(7); }
TEST(RateScheduler, GoesOnToTheBitBeforeItsFirstStepAndAfterItsEnd) {
  expect_exact_resume(0);
  expect_exact_resume(11);
}

TEST(RateScheduler, StepsAFusedOptimizerByTheRatesOfLibTorchs) {
  const TempFolder folder;
  torch::manual_seed(5);
  Training theirs(folder / "theirs.pt");
  torch::manual_seed(5);
  FusedTraining ours(folder / "ours.pt");
  EXPECT_EQ(ours.train_until(12), theirs.train_until(12));
  EXPECT_TRUE(torch::allclose(ours.net->weight, theirs.net->weight, 1e-5, 1e-6));
}

TEST(RateScheduler, GoesOnWithTheBaseRateOfTheNewRun) {
  const TempFolder folder;
  Training(folder / "run.pt", 0.01).train_until(3);
  Training scaled(folder / "run.pt", 0.04);
  scaled.checkpoint.load_or_start();
  const double factor = scaled.scheduler.schedule()(3);
  EXPECT_EQ(rates_of(scaled.optimizer), (Rates{0.04 * factor, 0.02 * factor})) << "at the first step already";
  EXPECT_EQ(scaled.scheduler.steps(), 3);
}

TEST(RateScheduler, KnowsTheBaseRateOfAGroupThatCameBetweenConstructionAndLoad) {
  const TempFolder folder;
  const auto run = [&](bool loads) {
    torch::nn::Linear net(3, 2);
    optim::SGD optimizer({net->weight}, 0.5);
    RateScheduler scheduler(optimizer, step_decay(1, 0.5));
    optimizer.add_param_group({{net->bias}, std::make_unique<optim::SGDOptions>(0.25)});
    Checkpoint checkpoint(folder / "run.pt", net, optimizer, scheduler);
    if (loads) checkpoint.load_or_start();
    if (!loads) scheduler.step();
    if (!loads) checkpoint.save({});
    return rates_of(optimizer);
  };
  EXPECT_EQ(run(false), (Rates{0.25, 0.125}));
  EXPECT_EQ(run(true), (Rates{0.25, 0.125}));
}

TEST(RateScheduler, IsKeptAsPythonsSchedulersCountAndWithoutAWarning) {
  const TempFolder folder;
  const auto log = heard([&] {
    optim::SGD optimizer({parameter()}, 0.5);
    RateScheduler scheduler(optimizer, constant());
    scheduler.step();
    scheduler.step();
    Checkpoint checkpoint(folder / "run.pt", torch::nn::Linear(3, 2));
    checkpoint.add(scheduler);
    checkpoint.save({});
  });
  EXPECT_EQ(testing::count(log, " warn "), 0) << log;
  const auto saved = load_pt(folder / "run.pt").toGenericDict().at("scheduler").toGenericDict();
  EXPECT_EQ(saved.at("last_epoch").toInt(), 2);
  EXPECT_EQ(saved.at("_step_count").toInt(), 3);
}

TEST(RateScheduler, RefusesAFileOfNoPossibleStep) {
  const TempFolder folder;
  for (const std::int64_t last : {std::int64_t{-1}, std::int64_t{1} << 31}) {
    Training run(folder / "run.pt");
    run.checkpoint.save({});
    auto root = load_pt(folder / "run.pt").toGenericDict();
    root.at("scheduler").toGenericDict().insert_or_assign("last_epoch", last);
    save_pt(folder / "run.pt", root);
    const auto error = error_of<CheckpointError>([&] { run.checkpoint.load_or_start(); });
    EXPECT_TRUE(contains(error, "has no such last_epoch: " + std::to_string(last)));
    EXPECT_EQ(run.scheduler.steps(), 0);
    std::filesystem::remove(folder / "run.pt");
  }
}

}  // namespace
}  // namespace ddp
