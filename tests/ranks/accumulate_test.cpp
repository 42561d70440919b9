// Steps of several micro-batches, and what is said where each of them waits for the other ranks.

#include "ddp/accumulate.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

struct Way {
  int per_step;
  bool views;
  bool set_to_none;
};

// An epoch of five micro-batches, against one process whose steps are of the same samples.
void expect_steps_of_one_process(const Group& group, const Way& way) {
  constexpr int kBatches = 5;
  Perceptron net, reference;
  auto options = kBucketEach;
  options.gradient_as_bucket_view = way.views;
  DistributedDataParallel model(net, group, options);
  std::vector<torch::Tensor> inputs, targets;  // of the step, on all ranks
  int steps = 0;
  for (int number = 1; number <= kBatches; ++number) {
    const auto batch = Batch::of_step(number, 6);
    const auto mine = batch.of_rank(group->rank(), group->size());
    inputs.push_back(batch.input);
    targets.push_back(batch.target);
    auto micro = accumulate(model, number, way.per_step, kBatches);
    EXPECT_EQ(model->micro_batches(), group->size() == 1 ? 0 : (number - 1) % way.per_step);
    micro.backward(squared_error(model(mine.input), mine.target));
    if (!micro.steps()) continue;
    ++steps;
    reference->zero_grad(way.set_to_none);
    squared_error(reference(torch::cat(inputs)), torch::cat(targets)).backward();
    expect_same_gradients(*net, *reference);
    net->zero_grad(way.set_to_none);
    inputs.clear();
    targets.clear();
  }
  EXPECT_EQ(steps, (kBatches + way.per_step - 1) / way.per_step);
  EXPECT_TRUE(inputs.empty());
}

TEST(Accumulate, GivesTheGradientsOfOneProcessAndOfARemainder) {  // R40
  for (int world = 1; world <= 3; ++world)
    run_ranks(world, [](const Group& group) {
      for (const int per_step : {1, 2, 4})
        for (const bool views : {true, false})
          for (const bool set_to_none : {true, false})
            expect_steps_of_one_process(group, {per_step, views, set_to_none});
    });
}

TEST(Accumulate, CallsTheOtherRanksOnceAStep) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group);
    const auto mine = Batch::of_step(0, 4).of_rank(group->rank(), 2);
    for (int number = 1; number <= 6; ++number) {
      auto micro = accumulate(model, number, 3, 6);
      // Alone: the other rank comes only where this one waits for it.
      if (!micro.steps() && group->rank() == 0) micro.backward(squared_error(model(mine.input), mine.target));
      if (!micro.steps()) group->barrier();
      if (!micro.steps() && group->rank() == 1) micro.backward(squared_error(model(mine.input), mine.target));
      if (micro.steps()) micro.backward(squared_error(model(mine.input), mine.target));
    }
    EXPECT_TRUE(same_on_all_ranks(*group, net->layers[0]->weight.grad()));
  });
}

TEST(Accumulate, RefusesToGoOnInTheMiddleOfAStep) {
  run_ranks(2, [](const Group& group) {
    DistributedDataParallel model(Perceptron(), group);
    expect_contains(error_of<std::logic_error>([&] { static_cast<void>(accumulate(model, 3, 4)); }),
                    {"micro-batch 3 of 4", "0 came before it", "checkpoints where steps() is true"});
    EXPECT_EQ(accumulate(model, 1, 4).divisor(), 4);
  });
}

TEST(Accumulate, BeginsAnewOnceWhatWasThereIsZeroed) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group);
    const auto batch = Batch::of_step(0, 4);
    const auto mine = batch.of_rank(group->rank(), 2);
    for (const bool set_to_none : {true, false}) {
      accumulate(model, 1, 2).backward(squared_error(model(mine.input), mine.target));
      EXPECT_THROW(static_cast<void>(accumulate(model, 1, 2)), std::logic_error);
      net->zero_grad(set_to_none);
      for (const int number : {1, 2}) {
        auto micro = accumulate(model, number, 2);
        micro.backward(squared_error(model(mine.input), mine.target));
      }
      reference->zero_grad();
      squared_error(reference(batch.input), batch.target).backward();
      expect_same_gradients(*net, *reference);
      net->zero_grad();
    }
  });
}

std::string said_over(const Group& group, bool zeroes, bool under_no_sync) {
  ::testing::internal::CaptureStderr();
  Perceptron net;
  DistributedDataParallel model(net, group);
  for (int step = 0; step < 3; ++step)
    for (int number = 1; number <= 2; ++number) {
      const auto mine = Batch::of_step(step, 4).of_rank(group->rank(), 2);
      std::optional<NoSync> guard;
      if (under_no_sync && number == 1) guard.emplace(model->no_sync());
      if (zeroes || number == 1) net->zero_grad(step == 1);
      squared_error(model(mine.input), mine.target).backward();
    }
  return ::testing::internal::GetCapturedStderr();
}

TEST(MicroBatches, ThatAreEachAveragedMakeRankZeroSaySoOnce) {
  run_ranks(2, [](const Group& group) {
    const auto* const words = "adds to gradients that the one before has averaged already";
    EXPECT_EQ(count(said_over(group, false, false), words), group->rank() == 0 ? 1 : 0);
    EXPECT_EQ(count(said_over(group, true, false), words), 0) << "each step is zeroed";
    EXPECT_EQ(count(said_over(group, false, true), words), 0) << "one of two is under no_sync";
  });
}

}  // namespace
}  // namespace ddp
