// Steps that are done in backward(), a bucket at a time, and have the results of steps after it.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "ddp/accumulate.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/grad_scaler.hpp"
#include "ddp/optim.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/recomputed.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

std::unique_ptr<torch::optim::Optimizer> fused_sgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions(0.05).momentum(0.9));
}
std::unique_ptr<torch::optim::Optimizer> fused_adamw(std::vector<at::Tensor> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions(0.01));
}

std::vector<at::Tensor> values_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

int changed_since(const std::vector<at::Tensor>& before, const torch::nn::Module& net) {
  int changed = 0;
  const auto now = net.parameters();
  for (std::size_t i = 0; i < now.size(); ++i) changed += torch::equal(before[i], now[i]) ? 0 : 1;
  return changed;
}

void backward(DistributedDataParallel<PerceptronImpl>& model, const Group& group, int step) {
  const auto mine = Batch::of_step(step, 12).of_rank(group->rank(), group->size());
  squared_error(model(mine.input), mine.target).backward();
}

// A step of one process, on all ranks' samples.
void train_alone(Perceptron& net, torch::optim::Optimizer& optimizer, int step) {
  const auto batch = Batch::of_step(step, 12);
  optimizer.zero_grad();
  squared_error(net(batch.input), batch.target).backward();
  optimizer.step();
}

void expect_close(const torch::nn::Module& net, const torch::nn::Module& reference) {
  const auto trained = net.parameters(), expected = reference.parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(close(trained[i], expected[i], 1e-10)) << i;
}

auto make_routes() { return std::make_shared<RoutesImpl>(3); }

const auto loss_of_route = [](auto& call, auto&, const Turn& turn) {
  return call(turn.input(), std::vector<int>{0, 1, 2}).pow(2).mean();
};

TEST(StepInBackward, TrainsAsOneProcessDoes) {
  for (const auto& make : {MakeOptimizer(fused_sgd), MakeOptimizer(fused_adamw)})
    for (const auto zero : {Zero::to_none, Zero::in_place})
      expect_equal_to_one_process({}, make_routes, loss_of_route,
                                  {.zero = zero, .make_optimizer = make, .step_in_backward = true});
}

TEST(StepInBackward, TrainsAsOneProcessDoesWithMicroBatches) {
  expect_equal_to_one_process({}, make_routes, loss_of_route,
                              {.micro_batches = 3, .make_optimizer = fused_sgd, .step_in_backward = true});
}

TEST(StepInBackward, TrainsAsOneProcessDoesWithUnusedParameters) {
  // Ranks and steps use other layers; the last one is nobody's.
  const auto loss = [](auto& call, auto&, const Turn& turn) {
    return call(turn.input(), std::vector<int>{0, (turn.rank + turn.step) % 2}).pow(2).mean();
  };
  for (const auto zero : {Zero::to_none, Zero::in_place})
    expect_equal_to_one_process({.find_unused_parameters = true}, make_routes, loss,
                                {.zero = zero, .make_optimizer = fused_sgd, .step_in_backward = true});
}

TEST(StepInBackward, TrainsAsOneProcessDoesWithAStaticGraph) {
  const auto loss = [](auto& call, auto&, const Turn& turn) {
    return call(turn.input(), std::vector<int>{1, 0}).pow(2).mean();
  };
  expect_equal_to_one_process({.static_graph = true}, make_routes, loss,
                              {.make_optimizer = fused_adamw, .step_in_backward = true});
}

// A block that is recomputed twice gives gradients after its bucket has left: a mean that a second exchange completes.
TEST(StepInBackward, TrainsAsOneProcessDoesWithBlocksThatAreRecomputedTwice) {
  const auto make = [] { return std::make_shared<RecomputedImpl>(3); };
  const auto loss = [](auto& call, auto&, const Turn& turn) {
    return call(turn.input(), std::vector<int>{0, 1, 0, 2}).pow(2).mean();
  };
  for (const bool is_static : {false, true})
    expect_equal_to_one_process({.static_graph = is_static}, make, loss,
                                {.make_optimizer = fused_sgd, .step_in_backward = true});
}

// Bits: the same arithmetic on the same means.
TEST(StepInBackward, HasTheBitsOfStepsAfterIt) {
  for (const int world : {1, 2, 3})
    run_ranks(world, [&](const Group& group) {
      Perceptron net, reference;
      {
        DistributedDataParallel reference_model(reference, group, kBucketEach);
        optim::AdamW reference_optimizer(reference->parameters(), optim::AdamWOptions(0.01));
        for (int step = 0; step < 5; ++step) {
          reference_optimizer.zero_grad();
          backward(reference_model, group, step);
          reference_optimizer.step();
        }
      }
      DistributedDataParallel model(net, group, kBucketEach);
      optim::AdamW optimizer(net->parameters(), optim::AdamWOptions(0.01));
      optimizer.step_in_backward(model);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        const auto before = values_of(*net);
        backward(model, group, step);
        EXPECT_EQ(changed_since(before, *net), world == 1 ? 0 : 8) << "parameters after backward()";
        const auto stepped = values_of(*net);
        optimizer.step();
        EXPECT_EQ(changed_since(stepped, *net), world == 1 ? 8 : 0) << "parameters that step() was left";
      }
      EXPECT_EQ(changed_since(values_of(*net), *reference), 0);
    });
}

// All-reduces; the last bucket's mean waits for a sign that the first one's parameters were taken.
struct LastWaits : CommHook {
  std::string name() const override { return "last waits"; }
  std::function<void()> launch(ProcessGroup& group, GradBucket bucket) override {
    auto gradients = bucket.gradients;
    const auto work = group.all_reduce_async(gradients);
    const bool is_last = bucket.index == 7;
    return [this, work, gradients, is_last, ranks = group.size()]() mutable {
      work.wait();
      gradients.div_(ranks);
      if (!is_last) return;
      const auto end = std::chrono::steady_clock::now() + 10s;
      while (std::chrono::steady_clock::now() < end && !is_taken()) std::this_thread::yield();
      was_taken = is_taken();
    };
  }
  std::function<bool()> is_taken;
  bool was_taken = false;
};

TEST(StepInBackward, UpdatesABucketsParametersWhileOthersAreOnTheirWay) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    const auto hook = std::make_shared<LastWaits>();
    auto options = kBucketEach;
    options.comm_hook = hook;
    DistributedDataParallel model(net, group, options);
    optim::SGD optimizer(net->parameters(), 0.1);
    optimizer.step_in_backward(model);
    const auto last_layer = net->layers.back()->weight, start = last_layer.detach().clone();
    hook->is_taken = [&] { return !torch::equal(last_layer, start); };
    backward(model, group, 0);
    EXPECT_TRUE(hook->was_taken);
    optimizer.step();
  });
}

TEST(StepInBackward, WaitsForStepWhereMoreIsToBeKnown) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group, kBucketEach);
    optim::SGD optimizer(net->parameters(), 0.1);
    optimizer.step_in_backward(model);
    GradScaler scaler(model, {.init_scale = 1024});
    const auto start = values_of(*net);
    const auto mine = Batch::of_step(0, 12).of_rank(group->rank(), group->size());
    scaler.scale(squared_error(model(mine.input), mine.target)).backward();
    EXPECT_EQ(changed_since(start, *net), 0);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    EXPECT_EQ(changed_since(start, *net), 8);

    optimizer.zero_grad();
    optimizer.set_max_grad_norm(0.01);
    const auto before = values_of(*net);
    backward(model, group, 1);
    EXPECT_EQ(changed_since(before, *net), 0);
    optimizer.step();
    double squares = 0;
    const auto now = values_of(*net);
    for (std::size_t i = 0; i < now.size(); ++i) squares += (now[i] - before[i]).pow(2).sum().item<double>();
    EXPECT_NEAR(std::sqrt(squares), 0.1 * 0.01, 1e-6);
    EXPECT_TRUE(same_on_all_ranks(*group, torch::tensor(optimizer.grad_norm().value(), torch::kDouble)));
  });
}

TEST(StepInBackward, LeavesToStepWhatTheWrapperDoesNotAverage) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    auto options = kBucketEach;
    options.ignored_parameters = {"layer0.weight"};
    DistributedDataParallel model(net, group, options);
    optim::SGD optimizer(net->parameters(), 0.1);
    optimizer.step_in_backward(model);
    const auto before = values_of(*net);
    backward(model, group, 0);
    EXPECT_EQ(changed_since(before, *net), 7);
    optimizer.step();
    EXPECT_EQ(changed_since(before, *net), 8);
  });
}

TEST(StepInBackward, ServesOptimizersOfPartsOfTheNetworkUntilTheyEnd) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group, kBucketEach);
    const auto all = net->parameters();
    optim::SGD lower(std::vector<at::Tensor>(all.begin(), all.begin() + 4), 0.1);
    lower.step_in_backward(model);
    auto upper = std::make_unique<optim::AdamW>(std::vector<at::Tensor>(all.begin() + 4, all.end()));
    upper->step_in_backward(model);
    const auto start = values_of(*net);
    backward(model, group, 0);
    EXPECT_EQ(changed_since(start, *net), 8);
    lower.step();
    upper->step();
    upper.reset();
    const auto before = values_of(*net);
    net->zero_grad();
    backward(model, group, 1);
    EXPECT_EQ(changed_since(before, *net), 4);
    lower.step();
    optim::SGD moved(std::move(lower));
    net->zero_grad();
    const auto after = values_of(*net);
    backward(model, group, 2);
    EXPECT_EQ(changed_since(after, *net), 4);
    moved.step();
  });
}

using ParametersOf = std::function<std::vector<at::Tensor>(const Perceptron&)>;

// Beside one process and LibTorch's optimizer. In each backward() so many parameters are updated.
void expect_training_of(const ParametersOf& parameters_of, bool ask_each_time, int updated) {
  run_ranks(2, [&](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group, kBucketEach);
    optim::SGD optimizer(parameters_of(net), optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD reference_optimizer(parameters_of(reference), optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      if (step == 0 || ask_each_time) optimizer.step_in_backward(model);
      optimizer.zero_grad();
      const auto before = values_of(*net);
      backward(model, group, step);
      EXPECT_EQ(changed_since(before, *net), updated);
      optimizer.step();
      train_alone(reference, reference_optimizer, step);
    }
    expect_close(*net, *reference);
  });
}

// LibTorch's Module::parameters() lists tied weights twice, and its optimizers step them twice.
TEST(StepInBackward, LeavesToStepAParameterThatStandsTwice) {
  const auto twice = [](const Perceptron& of) {
    auto parameters = of->parameters();
    parameters.push_back(parameters[2]);
    return parameters;
  };
  expect_training_of(twice, false, 7);
}

TEST(StepInBackward, IsTheSameHoweverOftenItIsAskedFor) {
  expect_training_of([](const Perceptron& of) { return of->parameters(); }, true, 8);
}

TEST(StepInBackward, OutlivesTheWrapper) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    optim::SGD optimizer(net->parameters(), 0.1);
    {
      DistributedDataParallel model(net, group, kBucketEach);
      optimizer.step_in_backward(model);
      backward(model, group, 0);
      optimizer.step();
    }
    optimizer.zero_grad();
    const auto before = values_of(*net);
    const auto batch = Batch::of_step(0, 4);
    squared_error(net(batch.input), batch.target).backward();
    EXPECT_EQ(changed_since(before, *net), 0);
    optimizer.step();
    EXPECT_EQ(changed_since(before, *net), 8);
  });
}

// Ranks that have left their loops take part with zeros, and step like the others.
TEST(StepInBackward, GoesOnThroughJoin) {
  run_ranks(3, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group, kBucketEach);
    optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.1).momentum(0.9));
    optimizer.step_in_backward(model);
    auto join = model->join();
    for (int step = 0; step < 2 + group->rank(); ++step) {
      optimizer.zero_grad();
      backward(model, group, step);
      optimizer.step();
    }
    join.finish([&] { optimizer.step(); });
    for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_on_all_ranks(*group, parameter.detach()));
  });
}

TEST(StepInBackward, WeighsBySamplesBeforeItSteps) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    auto options = kBucketEach;
    options.weight_by_samples = true;
    DistributedDataParallel model(net, group, options);
    optim::SGD optimizer(net->parameters(), 0.1);
    optimizer.step_in_backward(model);
    torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      const std::int64_t first = 1 + step;  // rows of rank 0, of 6: the sum stays, the shares change
      const auto batch = Batch::of_step(step, 6 + step);
      const auto rows = std::vector<std::int64_t>{first, 6 + step - first};
      const auto rank = static_cast<std::size_t>(group->rank());
      optimizer.zero_grad();
      model->set_samples(rows[rank]);
      squared_error(model(batch.input.split_with_sizes(rows)[rank]), batch.target.split_with_sizes(rows)[rank])
          .backward();
      optimizer.step();
      reference_optimizer.zero_grad();
      squared_error(reference(batch.input), batch.target).backward();
      reference_optimizer.step();
      const auto expected = reference->parameters(), trained = net->parameters();
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(close(trained[i], expected[i], 1e-10)) << "step " << step << ", parameter " << i;
    }
  });
}

}  // namespace
}  // namespace ddp
