#include "ddp/training_plan.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/error.hpp"
#include "ddp/learning_rate.hpp"
#include "ddp/rate_scheduler.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

TEST(TrainingPlan, CountsTheSamplesOfAllRanksAndTheStepOfTheRemainder) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [&](const Group& group) {
      const TrainingPlan plan({.local_batch = 8, .accumulate = 4, .batches = 10, .epochs = 5}, *group);
      EXPECT_EQ(plan.local_batch(), 8);
      EXPECT_EQ(plan.global_batch(), 8 * 4 * world);
      EXPECT_EQ(plan.steps_per_epoch(), 3) << "of 4, 4 and 2 micro-batches";
      EXPECT_EQ(plan.steps(), 15);
    });
  }
}

TEST(TrainingPlan, AddsUpBatchesThatDifferBetweenTheRanks) {
  run_ranks(3, [](const Group& group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    const TrainingPlan plan({.local_batch = 8 * (rank + 1), .batches = 10 + rank, .epochs = 2}, *group);
    EXPECT_EQ(plan.local_batch(), 8 * (group->rank() + 1));
    EXPECT_EQ(plan.global_batch(), 8 + 16 + 24);
    EXPECT_EQ(plan.steps_per_epoch(), 12) << "of the rank with the most";
    EXPECT_EQ(plan.steps(), 24);
  });
}

TEST(TrainingPlan, EndsByStepsWhereThatIsAskedFor) {
  run_ranks(2, [](const Group& group) {
    const TrainingPlan plan({.local_batch = 8, .batches = 10, .steps = 1234}, *group);
    EXPECT_EQ(plan.steps_per_epoch(), 10);
    EXPECT_EQ(plan.steps(), 1234);
  });
}

/// The error of a plan in which rank 1 has other numbers, the same on both ranks.
std::string error_with(const TrainingPlanOptions& of_rank1) {
  const auto outcomes = observe_ranks(2, [&](const Environment& environment) {
    const auto group = init_process_group({.environment = environment});
    const TrainingPlanOptions sound{.local_batch = 8, .batches = 10};
    const auto error = error_of<ConfigError>([&] { TrainingPlan(group->rank() == 1 ? of_rank1 : sound, *group); });
    const auto speaker = "rank " + std::to_string(group->rank()) + " of 2: ";
    EXPECT_EQ(error.substr(0, speaker.size()), speaker) << error;
    const auto all = group->all_gather_bytes(error.substr(std::min(error.size(), speaker.size())));
    EXPECT_EQ(all[0], all[1]);
    if (group->rank() == 0) std::fprintf(stderr, "[%s]\n", all[0].c_str());
    group->shutdown();
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.output;
  return outcomes[0].output;
}

TEST(TrainingPlan, RefusesNonsenseOnAllRanks) {
  EXPECT_TRUE(contains(error_with({.batches = 10}), "training plan: on rank 1 local_batch is 0, but at least 1"));
  EXPECT_TRUE(contains(error_with({.local_batch = 8, .accumulate = 0, .batches = 10}), "accumulate is 0"));
  EXPECT_TRUE(contains(error_with({.local_batch = 8}), "batches is 0"));
  EXPECT_TRUE(contains(error_with({.local_batch = 8, .batches = 10, .epochs = -2}), "epochs is -2"));
  EXPECT_TRUE(contains(error_with({.local_batch = 8, .batches = 10, .steps = 0}), "steps is 0"));
  EXPECT_TRUE(contains(error_with({.local_batch = static_cast<std::size_t>(-8), .batches = 10}), "local_batch is -8"));
}

TEST(TrainingPlan, RefusesRanksThatPlanForRunsOfAnotherLength) {
  EXPECT_TRUE(
      contains(error_with({.local_batch = 8, .batches = 10, .epochs = 2}), "other epochs or steps than rank 0"));
  EXPECT_TRUE(contains(error_with({.local_batch = 8, .batches = 10, .steps = 9}), "other epochs or steps than rank 0"));
}

/// What each rank logs while it makes and reports a plan.
std::vector<std::string> reports(int world, const Schedule& schedule, const TrainingPlanOptions& options,
                                 bool batches_differ = false) {
  std::vector<std::string> logs;
  for (const auto& outcome : observe_ranks(world, [&](const Environment& environment) {
         const auto group = init_process_group({.environment = environment});
         auto own = options;
         if (batches_differ) own.local_batch += static_cast<std::size_t>(group->rank());
         torch::optim::SGD optimizer({torch::zeros({1}, torch::requires_grad())}, 0.25);
         const RateScheduler scheduler(optimizer, schedule);
         TrainingPlan(own, *group).report(scheduler);
         group->shutdown();
       })) {
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    logs.push_back(outcome.output);
  }
  return logs;
}

TEST(TrainingPlan, IsReportedInOneLineOfRankZero) {
  const auto logs =
      reports(2, schedule::warm_up(3, schedule::cosine(9)), {.local_batch = 8, .batches = 4, .epochs = 3});
  EXPECT_TRUE(contains(logs[0],
                       "info rank 0: training plan: local batch 8, global batch 16 on 2 ranks; 4 steps an epoch, 12 in "
                       "3 epochs; learning rate 0.25\n"));
  EXPECT_EQ(count(logs[0], "training plan"), 1) << "no warning: " << logs[0];
  EXPECT_EQ(count(logs[1], "training plan"), 0) << logs[1];
}

TEST(TrainingPlan, ReportsAccumulationAndBatchesThatDiffer) {
  const auto logs =
      reports(2, schedule::constant(), {.local_batch = 8, .accumulate = 2, .batches = 4, .steps = 7}, true);
  EXPECT_TRUE(contains(logs[0],
                       "local batch 8 to 9 in each of 2 micro-batches, global batch 34 on 2 ranks; 2 steps an epoch, 7 "
                       "in all; learning rate 0.25\n"));
}

TEST(TrainingPlan, WarnsOfAScheduleOfAnotherLengthThanTheRun) {
  const TrainingPlanOptions options{.local_batch = 8, .batches = 4, .epochs = 3};
  const auto is_short = reports(1, schedule::cosine(11), options);
  EXPECT_TRUE(
      contains(is_short[0],
               "warn rank 0: training plan: the schedule lasts 11 steps, but the run 12: the last ones keep its "
               "final rate\n"));
  const auto is_long = reports(1, schedule::warm_up(3, schedule::cosine(12)), options);
  EXPECT_TRUE(contains(is_long[0], "the schedule lasts 15 steps, but the run 12: it ends before the schedule does\n"));
}

/// Rank 0's log of a run that loads run.pt, or starts, and saves.
std::string go_on(int world, const std::filesystem::path& path, double base_rate, std::optional<ScalingRule> rule) {
  const auto outcomes = observe_ranks(world, [&](const Environment& environment) {
    const auto group = init_process_group({.environment = environment});
    Perceptron net(1);
    const TrainingPlan plan({.local_batch = 8, .batches = 4}, *group);
    const auto rate = rule ? scaled_learning_rate(base_rate, 8, plan.global_batch(), *rule) : base_rate;
    torch::optim::SGD optimizer(net->parameters(), rate);
    RateScheduler scheduler(optimizer, schedule::cosine(40));
    Checkpoint checkpoint(path, net.ptr(), group);
    checkpoint.add(optimizer);
    checkpoint.add(scheduler);
    checkpoint.add("plan", plan.checkpoint_value(scheduler));
    const auto before = checkpoint.load_or_start().step;
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), rate * schedule::cosine(40)(before));
    scheduler.step();
    checkpoint.save({.step = before + 1});
    group->shutdown();
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.output;
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank)
    EXPECT_EQ(count(outcomes[rank].output, "training plan"), 0) << outcomes[rank].output;
  return outcomes[0].output;
}

TEST(TrainingPlan, WarnsWhereMoreRanksGoOnAtTheSameRate) {
  const TempFolder folder;
  EXPECT_EQ(count(go_on(2, folder / "run.pt", 0.1, {}), "training plan"), 0);
  const auto log = go_on(3, folder / "run.pt", 0.1, {});
  EXPECT_TRUE(contains(log,
                       "warn rank 0: training plan: the checkpoint's global batch is 16, here it is 24, at the same "
                       "learning rate 0.1; scaled linearly (SGD): learning rate 0.15, by the square root (Adam and its "
                       "like): learning rate 0.122474\n"));
  EXPECT_EQ(count(go_on(3, folder / "run.pt", 0.1, {}), "training plan"), 0) << "the file is now one of 3 ranks";
}

TEST(TrainingPlan, DoesNotWarnWhereTheRateWasScaledWithTheRanks) {
  for (const auto rule : {ScalingRule::linear, ScalingRule::square_root}) {
    const TempFolder folder;
    go_on(2, folder / "run.pt", 0.1, rule);
    const auto log = go_on(3, folder / "run.pt", 0.1, rule);
    EXPECT_TRUE(contains(log, "the run goes on with epoch 0, step 1"));
    EXPECT_EQ(count(log, "training plan"), 0) << log;
  }
}

TEST(TrainingPlan, DoesNotWarnWhereTheBatchIsTheSame) {
  const TempFolder folder;
  go_on(2, folder / "run.pt", 0.1, {});
  EXPECT_EQ(count(go_on(2, folder / "run.pt", 0.1, {}), "training plan"), 0);
  EXPECT_EQ(count(go_on(2, folder / "run.pt", 0.3, {}), "training plan"), 0);
}

}  // namespace
}  // namespace ddp
