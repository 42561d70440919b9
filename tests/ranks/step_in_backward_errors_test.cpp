// Steps in backward() where something is wrong: void reductions change nothing, and what would give other results than
// a step after backward() is an error.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "ddp/clip_grad.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/grad_scaler.hpp"
#include "ddp/optim.hpp"
#include "support/backward_errors.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

std::vector<at::Tensor> values_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

bool is_unchanged(const std::vector<at::Tensor>& before, const torch::nn::Module& net) {
  const auto now = net.parameters();
  for (std::size_t i = 0; i < now.size(); ++i)
    if (!torch::equal(before[i], now[i])) return false;
  return true;
}

// A wrapped network and its optimizer, which steps in backward().
struct Training {
  explicit Training(Group of) : group(std::move(of)) { optimizer.step_in_backward(model); }

  void backward(int step) {
    const auto mine = Batch::of_step(step, 12).of_rank(group->rank(), group->size());
    squared_error(model(mine.input), mine.target).backward();
  }
  void train(int step) {
    optimizer.zero_grad();
    backward(step);
    optimizer.step();
  }

  Group group;
  Perceptron net;
  DistributedDataParallel<PerceptronImpl> model{net, group, kBucketEach};
  optim::SGD optimizer{net->parameters(), optim::SGDOptions(0.1).momentum(0.9)};
};

TEST(StepInBackwardErrors, AMissingGradientOnOneRankChangesNoParameterOnAny) {
  run_ranks(3, [](const Group& group) {
    Training training(group);
    training.train(0);
    training.optimizer.zero_grad();
    const auto before = values_of(*training.net);
    const auto input = Batch::of_step(1, 4).input;
    // Rank 1 leaves out the first layer, whose bucket is the last.
    const auto text = gradient_error([&] {
      if (group->rank() != 1) return training.backward(1);
      auto hidden = torch::zeros({4, 16}, torch::kDouble);
      training.model(input);
      for (std::size_t i = 1; i < 4; ++i) hidden = training.net->layers[i](torch::tanh(hidden));
      hidden.sum().backward();
    });
    EXPECT_TRUE(contains(text, "layer0.weight")) << text;
    EXPECT_TRUE(is_unchanged(before, *training.net));
    training.train(2);
    EXPECT_FALSE(is_unchanged(before, *training.net));
    for (const auto& value : values_of(*training.net)) EXPECT_TRUE(same_on_all_ranks(*group, value));
  });
}

TEST(StepInBackwardErrors, ABackwardThatThrowsOnOneRankChangesNoParameterOnAny) {
  run_ranks(2, [](const Group& group) {
    Training training(group);
    const auto before = values_of(*training.net);
    const auto batch = Batch::of_step(0, 4);
    std::string text;
    try {
      auto output = training.model(Fuse::apply(batch.input.clone().requires_grad_(), group->rank() == 1));
      squared_error(output, batch.target).backward();
      if (group->rank() == 1) ADD_FAILURE() << "nothing was thrown";
    } catch (const GradientError& error) {
      text = error.what();
    } catch (const std::exception& error) {
      EXPECT_TRUE(contains(error.what(), "blown"));
    }
    training.optimizer.zero_grad();
    if (group->rank() == 1) training.model(batch.input);  // settles the round in which the other rank waits
    if (group->rank() == 0) {
      EXPECT_TRUE(contains(text, "rank 1")) << text;
    }
    EXPECT_TRUE(is_unchanged(before, *training.net));
  });
}

TEST(StepInBackwardErrors, ABackwardBeforeTheStepOfTheOneBeforeIsAnErrorOnAllRanks) {
  run_ranks(2, [](const Group& group) {
    Training training(group);
    training.backward(0);
    if (group->rank() == 0) training.optimizer.step();
    training.optimizer.zero_grad();
    const auto before = values_of(*training.net);
    const auto text = gradient_error([&] { training.backward(1); });
    EXPECT_TRUE(contains(text, "rank 1")) << text;
    EXPECT_TRUE(contains(text, "step() was not called after the reduction before")) << text;
    EXPECT_TRUE(is_unchanged(before, *training.net));
    training.train(2);
    EXPECT_FALSE(is_unchanged(before, *training.net));
  });
}

TEST(StepInBackwardErrors, GradientsAndOptionsThatChangeBeforeStepAreErrors) {
  run_ranks(2, [](const Group& group) {
    Training training(group);
    training.backward(0);
    clip_grad_norm_(training.net->parameters(), 1e-3);
    auto text = text_of<std::logic_error>([&] { training.optimizer.step(); });
    EXPECT_TRUE(contains(text, "optim::SGD: a gradient was changed between backward()")) << text;
    EXPECT_TRUE(contains(text, "set_max_grad_norm()")) << text;

    training.optimizer.zero_grad();
    training.backward(4);
    torch::nn::utils::clip_grad_norm_(training.net->parameters(), 1e-3);
    text = text_of<std::logic_error>([&] { training.optimizer.step(); });
    EXPECT_TRUE(contains(text, "a gradient was changed")) << "by LibTorch's clipping: " << text;

    training.optimizer.zero_grad();
    training.backward(1);
    training.optimizer.zero_grad();
    text = text_of<std::logic_error>([&] { training.optimizer.step(); });
    EXPECT_TRUE(contains(text, "a gradient was changed")) << text;

    training.backward(2);
    training.optimizer.param_groups()[0].options().set_lr(0.01);
    text = text_of<std::logic_error>([&] { training.optimizer.step(); });
    EXPECT_TRUE(contains(text, "the options of a parameter group were changed")) << text;
    training.train(3);
  });
}

TEST(StepInBackwardErrors, ALimitThatIsSetBeforeStepIsAnError) {
  run_ranks(2, [](const Group& group) {
    Training training(group);
    training.backward(0);
    training.optimizer.set_max_grad_norm(1e-3);
    const auto text = text_of<std::logic_error>([&] { training.optimizer.step(); });
    EXPECT_TRUE(contains(text, "the limit of the gradients' norm was changed between backward()")) << text;
    training.train(1);
    EXPECT_TRUE(training.optimizer.grad_norm());
  });
}

TEST(StepInBackwardErrors, AGradScalerThatTheWrapperWasNotToldOfIsAnError) {
  run_ranks(2, [](const Group& group) {
    Training training(group);
    GradScaler scaler;
    const auto mine = Batch::of_step(0, 12).of_rank(group->rank(), group->size());
    scaler.scale(squared_error(training.model(mine.input), mine.target)).backward();
    const auto text = text_of<std::logic_error>([&] { scaler.step(training.optimizer); });
    EXPECT_TRUE(contains(text, "gradients of a scaled loss")) << text;
    EXPECT_TRUE(contains(text, "give the GradScaler the wrapper")) << text;
  });
}

struct EmbeddedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words) { return linear(table(words)); }
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 3).sparse(true)));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 4));
};

TEST(StepInBackwardErrors, ASparseGradientIsRefusedByStepAndTheNextBackwardGoesOn) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<EmbeddedImpl>();
    DistributedDataParallel model(net, group);
    optim::SGD optimizer(net->parameters(), 0.1);
    optimizer.step_in_backward(model);
    for (int step = 0; step < 2; ++step) {
      model(torch::arange(3)).sum().backward();
      EXPECT_TRUE(contains(text_of<std::runtime_error>([&] { optimizer.step(); }), "a gradient is sparse"));
    }
  });
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<EmbeddedImpl>();
    DistributedDataParallel table(net->table, group);  // nothing in it has a bucket
    optim::SGD optimizer(net->table->parameters(), 0.1);
    optimizer.step_in_backward(table);
    table(torch::arange(3)).sum().backward();
    EXPECT_TRUE(contains(text_of<std::runtime_error>([&] { optimizer.step(); }), "a gradient is sparse"));
  });
}

TEST(StepInBackwardErrors, ARankThatDoesNotAskForItIsNamed) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group, kBucketEach);
    optim::SGD optimizer(net->parameters(), 0.1);
    const auto text = text_of<std::exception>([&] {
      if (group->rank() == 0) optimizer.step_in_backward(model);
      const auto mine = Batch::of_step(0, 12).of_rank(group->rank(), group->size());
      squared_error(model(mine.input), mine.target).backward();
    });
    EXPECT_TRUE(contains(text, "step_in_backward")) << text;
  });
}

}  // namespace
}  // namespace ddp
