// Means over ranks whose batches differ in size, and over micro-batches.

#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "ddp/distributed_data_parallel.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

DistributedDataParallelOptions weighted() {
  return {.bucket_cap_mb = 0.0001, .first_bucket_cap_mb = 0.0001, .weight_by_samples = true};
}

// The rows of one rank where rank r has rows[r] of them.
Batch part_of(const Batch& batch, const std::vector<std::int64_t>& rows, int rank) {
  return {batch.input.split_with_sizes(rows)[static_cast<std::size_t>(rank)],
          batch.target.split_with_sizes(rows)[static_cast<std::size_t>(rank)]};
}

std::int64_t sum_of(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

void expect_same_gradients(ProcessGroup& group, const torch::nn::Module& net, const torch::nn::Module& reference) {
  const auto expected = reference.named_parameters();
  for (const auto& entry : net.named_parameters()) {
    EXPECT_TRUE(close(entry.value().grad(), expected[entry.key()].grad(), 1e-10)) << entry.key();
    EXPECT_TRUE(same_on_all_ranks(group, entry.value().grad())) << entry.key();
  }
}

TEST(SampleWeights, LeftOutMakeTheMeanOfTheRanksMeans) {  // R39
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group);
    const auto batch = Batch::of_step(0, 4);
    const auto mine = part_of(batch, {3, 1}, group->rank());
    squared_error(model(mine.input), mine.target).backward();
    for (int rank = 0; rank < 2; ++rank) {
      const auto part = part_of(batch, {3, 1}, rank);
      (squared_error(reference(part.input), part.target) / 2).backward();
    }
    expect_same_gradients(*group, *net, *reference);
  });
}

// Each step has its own numbers of rows, 0 among them.
void expect_as_one_batch(const std::vector<std::vector<std::int64_t>>& rows_of_steps,
                         const DistributedDataParallelOptions& options) {
  run_ranks(static_cast<int>(rows_of_steps[0].size()), [&](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group, options);
    const auto optimizer = sgd_with_momentum(net->parameters());
    const auto reference_optimizer = sgd_with_momentum(reference->parameters());
    for (std::size_t step = 0; step < rows_of_steps.size(); ++step) {
      const auto& rows = rows_of_steps[step];
      const auto batch = Batch::of_step(static_cast<std::int64_t>(step), sum_of(rows));
      const auto mine = part_of(batch, rows, group->rank());
      optimizer->zero_grad();
      reference_optimizer->zero_grad();
      model->set_samples(mine.input.size(0));
      squared_error(model(mine.input), mine.target).backward();  // NaN over no rows
      squared_error(reference(batch.input), batch.target).backward();
      expect_same_gradients(*group, *net, *reference);
      optimizer->step();
      reference_optimizer->step();
    }
    expect_same_gradients(*group, *net, *reference);
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(close(net->parameters()[i], reference->parameters()[i], 1e-10));
  });
}

TEST(SampleWeights, MakeTheMeanOverAllSamples) {  // R39
  auto options = weighted();
  expect_as_one_batch({{3, 1}, {3, 1}, {3, 1}}, options);
  options.gradient_as_bucket_view = false;
  expect_as_one_batch({{3, 1}, {3, 1}, {3, 1}}, options);
}

TEST(SampleWeights, MayChangeInEachStepAndBeZeroThoughTheLossIsNaN) {
  for (const bool views : {true, false}) {
    auto options = weighted();
    options.gradient_as_bucket_view = views;
    expect_as_one_batch({{3, 1, 2}, {0, 5, 1}, {1, 0, 0}, {2, 2, 2}, {1000, 1, 0}, {1, 1, 1}}, options);
    expect_as_one_batch({{0, 2}, {1, 3}}, options);
  }
}

TEST(SampleWeights, OfZeroOnAllRanksLeaveZeros) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group, weighted());
    const auto batch = Batch::of_step(0, 4);
    for (const std::int64_t rows : {0, 2, 0, 2}) {
      const auto mine = batch.of_rank(group->rank(), 2);
      net->zero_grad();
      model->set_samples(rows);
      squared_error(model(mine.input.slice(0, 0, rows)), mine.target.slice(0, 0, rows)).backward();
      if (rows > 0) {
        reference->zero_grad();
        squared_error(reference(batch.input), batch.target).backward();
        expect_same_gradients(*group, *net, *reference);
      } else {
        for (const auto& parameter : net->parameters())
          EXPECT_TRUE(torch::equal(parameter.grad(), torch::zeros_like(parameter)));
      }
    }
  });
}

TEST(SampleWeights, ThatOneRankForgetsAreAnErrorOnAll) {
  run_ranks(3, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group, weighted());
    const auto x = torch::full({2, 8}, 1.0, torch::kDouble);
    const auto step = [&](bool tells) {
      net->zero_grad();
      if (tells) model->set_samples(group->rank() + 1);
      model(x).sum().backward();
    };
    step(true);
    try {
      step(group->rank() != 1);
      ADD_FAILURE() << "no exception";
    } catch (const GradientError& error) {
      EXPECT_TRUE(contains(error.what(), "on rank 1: weight_by_samples is on, but set_samples() was not called"));
    }
    EXPECT_FALSE(net->layers[0]->weight.grad().defined());
    step(true);
    EXPECT_TRUE(close(net->layers[3]->bias.grad(), torch::full({4}, 2.0, torch::kDouble), 1e-12));
  });
}

TEST(SampleWeights, AreRefusedWithoutTheOptionAndBelowZero) {
  run_ranks(2, [](const Group& group) {
    Perceptron first, second;
    DistributedDataParallel plain(first, group), by_samples(second, group, weighted());
    EXPECT_THROW(plain->set_samples(1), std::logic_error);
    EXPECT_THROW(by_samples->set_samples(-1), std::logic_error);
  });
}

TEST(SampleWeights, HoldForEveryDtype) {
  struct WeightsImpl : torch::nn::Module {
    WeightsImpl() {
      for (const auto dtype :
           {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat, torch::kComplexDouble})
        weights.push_back(register_parameter("w" + std::to_string(weights.size()), torch::ones({5}, dtype)));
    }
    torch::Tensor forward(double x) {
      auto sum = torch::zeros({}, torch::kDouble);
      for (const auto& w : weights) {
        const auto part = w.is_complex() ? torch::real(w * c10::complex<double>(x, 2 * x)) : w * x;
        sum = sum + part.sum().to(torch::kDouble);
      }
      return sum;
    }
    std::vector<torch::Tensor> weights;
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<WeightsImpl>();
    DistributedDataParallel model(net, group, weighted());
    // 256 samples a rank: the first step's shares do not overflow half types, whatever the ranks expect.
    for (const auto& [samples, mean] : {std::pair{std::vector{256, 768}, 3001.0}, {{3, 1}, 1001.0}, {{1, 1}, 2001.0}}) {
      net->zero_grad();
      model->set_samples(samples[static_cast<std::size_t>(group->rank())]);
      model(group->rank() == 0 ? 1.0 : 4001.0).backward();
      for (const auto& entry : net->named_parameters()) {
        const auto& w = entry.value();
        const auto expected = w.is_complex() ? torch::full({5}, c10::complex<double>(mean, -2 * mean), w.options())
                                             : torch::full({5}, mean, w.options());
        // A gradient, its share, the sum and its correction are rounded once each.
        const auto eps = w.scalar_type() == torch::kHalf       ? 0x1p-10
                         : w.scalar_type() == torch::kBFloat16 ? 0x1p-7
                                                               : 1e-6;
        EXPECT_LE((w.grad() - expected).abs().max().item<double>(), 2 * eps * mean) << entry.key() << w.grad();
        EXPECT_TRUE(same_on_all_ranks(*group, w.grad())) << entry.key();
      }
    }
  });
}

TEST(SampleWeights, CountAllMicroBatchesTogether) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group, weighted());
    for (const auto& rows : std::vector<std::vector<std::int64_t>>{{6, 2}, {2, 4}}) {
      const auto batch = Batch::of_step(rows[0], sum_of(rows));
      const auto mine = part_of(batch, rows, group->rank());
      net->zero_grad();
      reference->zero_grad();
      const auto inputs = mine.input.chunk(2), targets = mine.target.chunk(2);
      const auto half = [&](std::size_t i) { (squared_error(model(inputs[i]), targets[i]) / 2).backward(); };
      {
        const auto guard = model->no_sync();
        half(0);
      }
      model->set_samples(mine.input.size(0));
      half(1);
      squared_error(reference(batch.input), batch.target).backward();
      expect_same_gradients(*group, *net, *reference);
    }
  });
}

TEST(SampleWeights, LeaveGradientsAloneThatNoRankHasMade) {
  struct PartlyUsedImpl : torch::nn::Module {
    PartlyUsedImpl() { to(torch::kDouble); }
    torch::Tensor forward(torch::Tensor x) { return used(x); }
    torch::nn::Linear used = register_module("used", torch::nn::Linear(8, 4));
    torch::nn::Linear idle = register_module("idle", torch::nn::Linear(3, 3));
  };
  run_ranks(2, [](const Group& group) {
    torch::manual_seed(0);
    const auto net = std::make_shared<PartlyUsedImpl>();
    torch::manual_seed(0);
    PartlyUsedImpl reference;
    auto options = weighted();
    options.find_unused_parameters = true;
    DistributedDataParallel model(net, group, options);
    net->idle->bias.mutable_grad() = torch::full({3}, 7.0, torch::kDouble);
    for (int step = 0; step < 3; ++step) {
      net->used->zero_grad();
      reference.zero_grad();
      const auto batch = Batch::of_step(step, 4 + step);
      const auto mine = part_of(batch, {3, 1 + step}, group->rank());
      model->set_samples(mine.input.size(0));
      squared_error(model(mine.input), mine.target).backward();
      squared_error(reference.forward(batch.input), batch.target).backward();
      expect_same_gradients(*group, *net->used, *reference.used);
      EXPECT_TRUE(torch::equal(net->idle->bias.grad(), torch::full({3}, 7.0, torch::kDouble)));
      EXPECT_FALSE(net->idle->weight.grad().defined());
    }
  });
}

TEST(SampleWeights, LeftOutDivideAccumulatedGradientsOnce) {  // R40
  run_ranks(2, [](const Group& group) {
    for (const int k : {1, 2, 4})
      for (const bool views : {true, false})
        for (const bool to_none : {true, false}) {
          // Sums of small integers: every result is exact, whatever the order.
          const auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(3, 2));
          net->to(torch::kDouble);
          DistributedDataParallel model(net, group, {.gradient_as_bucket_view = views});
          for (int step = 0; step < 3; ++step) {
            net->zero_grad(to_none);
            double expected = 0;
            for (int micro = 0; micro < k; ++micro) {
              std::optional<NoSync> guard;
              if (micro + 1 < k) guard.emplace(model->no_sync());
              const auto value = [&](int rank) { return 2.0 * (1 + rank * 3 + micro + step); };
              model(torch::full({1, 3}, value(group->rank()), torch::kDouble)).sum().backward();
              expected += (value(0) + value(1)) / 2;
            }
            EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({2, 3}, expected, torch::kDouble)))
                << k << views << to_none << net->weight.grad() << expected;
            EXPECT_TRUE(torch::equal(net->bias.grad(), torch::full({2}, 1.0 * k, torch::kDouble)));
          }
        }
  });
}

}  // namespace
}  // namespace ddp
