// What the check says of models that are right, that are right for a reason, and that are wrong.

#include "ddp/smoke_test.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>

#include "support/points.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool has_norm = false, double share = 0) : norms(has_norm), dropout(share) {
    register_module("first", first);
    if (norms) register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    if (norms) x = norm(x);
    x = torch::nn::functional::dropout(x,
                                       torch::nn::functional::DropoutFuncOptions().p(dropout).training(is_training()));
    return last(torch::tanh(x));
  }
  bool norms;
  double dropout;
  torch::nn::Linear first{8, 12};
  torch::nn::BatchNorm1d norm{12};
  torch::nn::Linear last{12, 4};
};
TORCH_MODULE(Net);

const auto mean_square = [](auto& model, auto& batch) { return (model(batch.data) - batch.target).pow(2).mean(); };

std::size_t failed(const SmokeReport& report) {
  std::size_t count = 0;
  for (const auto& verdict : report.verdicts) count += verdict.passed ? 0 : 1;
  return count;
}

TEST(SmokeTest, PassesAModelThatTrainsAlike) {
  for (int world = 1; world <= 3; ++world)
    run_ranks(world, [world](const Group& group) {
      const auto report = smoke_test([] { return Net(); }, points(103), mean_square, group);
      EXPECT_TRUE(report.passed) << report.text();
      if (group->rank() != 0) return;
      EXPECT_EQ(report.verdicts.size(), 6u);
      ASSERT_EQ(report.ranks.size(), 20u);
      ASSERT_EQ(report.one_process.size(), 20u);
      for (std::size_t step = 0; step < 20; ++step)
        EXPECT_NEAR(report.ranks[step], report.one_process[step], 1e-5) << step;
      expect_contains(report.text(), {"step    one process", std::to_string(world) + " ranks do what one process does",
                                      "same losses", "equal to the bit", "the loss falls", "the same bits",
                                      "counts each of the 100 samples once", "passed"});
    });
}

TEST(SmokeTest, TakesTheOptimizerStepsAndModelsAsSharedPointers) {
  run_ranks(2, [](const Group& group) {
    const SmokeTestOptions options{.steps = 7, .samples = 30, .optimizer = [](std::vector<at::Tensor> parameters) {
                                     return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                                                  torch::optim::AdamWOptions(0.01));
                                   }};
    const auto report =
        smoke_test([] { return std::make_shared<NetImpl>(); }, points(500),
                   [](auto& model, auto& batch) { return (model->forward(batch.data) - batch.target).pow(2).mean(); },
                   group, options);
    EXPECT_TRUE(report.passed) << report.text();
    EXPECT_EQ(report.ranks.size(), group->rank() == 0 ? 7u : 0u);
  });
}

TEST(SmokeTest, FindsThatBatchNormExplainsADifference) {
  run_ranks(2, [](const Group& group) {
    const auto report = smoke_test([] { return Net(true); }, points(100), mean_square, group);
    EXPECT_TRUE(report.passed) << report.text();
    if (group->rank() == 0)
      expect_contains(report.text(), {"BatchNorm explains it", "10 samples instead of 20", "convert_sync_batchnorm"});
  });
}

TEST(SmokeTest, ShowsThatASynchronisedBatchNormIsThatOfTheWholeBatch) {
  run_ranks(3, [](const Group& group) {
    const auto report =
        smoke_test([] { return Net(true); }, points(100), mean_square, group, {.sync_batch_norm = true});
    EXPECT_TRUE(report.passed) << report.text();
    if (group->rank() != 0) return;
    EXPECT_EQ(report.verdicts.size(), 5u);
    expect_contains(report.text(), {"ok    one process on the whole batch has the same losses"});
  });
}

TEST(SmokeTest, IsNotMisledByRoundingThatGrowsBeyondTheTolerance) {
  run_ranks(3, [](const Group& group) {
    const auto report = smoke_test([] { return Net(true); }, points(100), mean_square, group,
                                   {.steps = 50, .tolerance = 1e-9, .sync_batch_norm = true});
    if (group->rank() == 0)
      expect_contains(report.text(),
                      {"ok    one process on the whole batch", "as they do by rounding alone in this model"});
  });
}

TEST(SmokeTest, FindsThatDropoutExplainsADifference) {
  run_ranks(2, [](const Group& group) {
    const auto report = smoke_test([] { return Net(false, 0.3); }, points(100), mean_square, group);
    EXPECT_TRUE(report.passed) << report.text();
    if (group->rank() == 0) expect_contains(report.text(), {"such as dropout or BatchNorm", "2 ranks do what"});
  });
}

TEST(SmokeTest, TellsOfABatchNormThatSeesTheBatchInEvaluationToo) {
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(8, 12),
                                 torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(12).track_running_stats(false)),
                                 torch::nn::Linear(12, 4));
  };
  const auto loss = [](auto& model, auto& batch) { return (model->forward(batch.data) - batch.target).pow(2).mean(); };
  run_ranks(3, [&](const Group& group) {
    const auto report = smoke_test(make, points(100), loss, group);
    EXPECT_TRUE(report.passed) << report.text();
    if (group->rank() == 0)
      expect_contains(report.text(),
                      {"other reasons cannot be ruled out", "as BatchNorm without running statistics does"});
  });
}

TEST(SmokeTest, TellsOfRandomNumbersInTheData) {
  run_ranks(2, [](const Group& group) {
    const auto noisy = [](auto& model, auto& batch) {
      return (model(batch.data + torch::randn_like(batch.data) / 4) - batch.target).pow(2).mean();
    };
    const auto report = smoke_test([] { return Net(); }, points(90), noisy, group);
    EXPECT_TRUE(report.passed) << report.text();
    if (group->rank() == 0)
      expect_contains(report.text(), {"draws random numbers", "ok    2 ranks do what one process does"});
  });
}

TEST(SmokeTest, JudgesHalfTypesByTheirRounding) {
  run_ranks(3, [](const Group& group) {
    const auto make = [] {
      torch::nn::Linear net(8, 4);
      net->to(torch::kBFloat16);
      return net;
    };
    const auto loss = [](auto& model, auto& batch) {
      return (model(batch.data.to(torch::kBFloat16)).to(torch::kFloat) - batch.target).pow(2).mean();
    };
    const auto report = smoke_test(make, points(100), loss, group);
    EXPECT_TRUE(report.passed) << report.text();
  });
}

TEST(SmokeTest, NamesALossThatIsASum) {
  run_ranks(3, [](const Group& group) {
    const auto sum = [](auto& model, auto& batch) { return (model(batch.data) - batch.target).pow(2).sum() / 50; };
    const auto report = smoke_test([] { return Net(); }, points(100), sum, group);
    EXPECT_FALSE(report.passed);
    if (group->rank() != 0) return;
    EXPECT_EQ(failed(report), 2u) << report.text();
    expect_contains(report.text(), {"FAIL  one process", "3.00 times theirs, so the loss is a sum",
                                    "in other portions: the loss of a batch is not the mean", "2 of 6 FAILED"});
  });
}

TEST(SmokeTest, NamesWeightsThatDifferBetweenTheRanks) {
  run_ranks(2, [](const Group& group) {
    const SmokeTestOptions options{.wrapper = {.ignored_parameters = {"last.bias"}}};
    const auto report = smoke_test([] { return Net(); }, points(100), mean_square, group, options);
    EXPECT_FALSE(report.passed);
    if (group->rank() == 0)
      expect_contains(report.text(), {"FAIL  2 ranks do NOT do", "FAIL  the weights are NOT equal on all ranks"});
  });
}

TEST(SmokeTest, NamesALossThatDoesNotFallAndOneThatIsNotFinite) {
  run_ranks(2, [](const Group& group) {
    const auto with_rate = [&](double rate) {
      return smoke_test([] { return Net(); }, points(100), mean_square, group,
                        {.optimizer = [rate](std::vector<at::Tensor> parameters) {
                          return std::make_unique<torch::optim::SGD>(std::move(parameters), rate);
                        }});
    };
    for (const auto& [rate, words] : {std::pair{3.0, "FAIL  the loss does NOT fall"}, {1e18, "FAIL  the loss is "}}) {
      const auto report = with_rate(rate);
      EXPECT_FALSE(report.passed) << rate;
      if (group->rank() == 0) expect_contains(report.text(), {words, "ok    the weights are equal"});
    }
  });
}

// State that is none of the checkpoint's: this model has it beside its buffers.
struct CountingImpl : NetImpl {
  torch::Tensor forward(const torch::Tensor& x) { return NetImpl::forward(x) * (1 + 0.01 * calls++); }
  int calls = 0;
};
TORCH_MODULE(Counting);

TEST(SmokeTest, NamesARunThatDoesNotGoOnExactly) {
  run_ranks(2, [](const Group& group) {
    const auto report = smoke_test([] { return Counting(); }, points(100), mean_square, group);
    EXPECT_FALSE(report.passed);
    if (group->rank() == 0) expect_contains(report.text(), {"FAIL  a new model that goes on", "OTHER weights"});
  });
}

TEST(SmokeTest, RefusesTooFewSamplesAndSteps) {
  run_ranks(3, [](const Group& group) {
    const auto check = [&](std::int64_t samples, int steps) {
      return error_of<std::invalid_argument>(
          [&] { smoke_test([] { return Net(); }, points(samples), mean_square, group, {.steps = steps}); });
    };
    expect_contains(check(5, 20), {"5 samples for 3 ranks"});
    expect_contains(check(100, 1), {"1 steps"});
  });
}

TEST(SmokeTest, RefusesAModelThatIsSynchronisedAlready) {
  run_ranks(2, [](const Group& group) {
    const auto make = [&] {
      Net net(true);
      convert_sync_batchnorm(net, group);
      return net;
    };
    expect_contains(error_of<std::invalid_argument>([&] { smoke_test(make, points(20), mean_square, group); }),
                    {"option sync_batch_norm"});
  });
}

TEST(SmokeTest, LeavesTheGroupUsable) {
  run_ranks(2, [](const Group& group) {
    const auto broken = [](auto& model, auto& batch) {
      if (!model->is_training()) throw std::runtime_error("no evaluation here");
      return (model(batch.data) - batch.target).pow(2).mean();
    };
    EXPECT_THROW(smoke_test([] { return Net(); }, points(20), broken, group), std::runtime_error);
    EXPECT_TRUE(smoke_test([] { return Net(); }, points(20), mean_square, group).passed);
  });
}

}  // namespace
}  // namespace ddp
