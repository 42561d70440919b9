// Ranks whose loops have different numbers of batches, against one process that sees every batch.

#include "ddp/join.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/metrics.hpp"
#include "support/ranks.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;
using Forward = std::function<at::Tensor(const at::Tensor&)>;

constexpr double kManyBucketsCap = 0.0001;

// Its data decide which branch a rank takes; `idle` is used by nobody.
struct BranchingImpl : torch::nn::Module {
  BranchingImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return x[0][0].item<double>() > 0 ? left(x) : right(torch::tanh(x)); }
  torch::nn::Linear left = register_module("left", torch::nn::Linear(8, 4));
  torch::nn::Linear idle = register_module("idle", torch::nn::Linear(3, 2));
  torch::nn::Linear right = register_module("right", torch::nn::Linear(8, 4));
};

// The same parameters in each step; `idle` is used by nobody.
struct PartlyUsedImpl : torch::nn::Module {
  PartlyUsedImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 5));
  torch::nn::Linear idle = register_module("idle", torch::nn::Linear(3, 2));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(5, 4));
};

struct EmbeddedImpl : torch::nn::Module {
  EmbeddedImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) {
    return linear(table((x * 1000).abs().to(torch::kLong).remainder(12)).mean(1));
  }
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 3).sparse(true)));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 4));
};

// All-reduces as the library would, by calls of its own.
struct PlainHook : CommHook {
  std::string name() const override { return "plain"; }
  std::function<void()> launch(ProcessGroup& group, GradBucket bucket) override {
    auto gradients = bucket.gradients;
    const auto work = group.all_reduce_async(gradients);
    return [work] { work.wait(); };
  }
};

// What the optimizer keeps, parameter by parameter.
std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer,
                                 const std::vector<torch::Tensor>& parameters) {
  std::vector<at::Tensor> state;
  for (const auto& parameter : parameters) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) {
      state.push_back(at::zeros({}));
    } else if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(found->second.get())) {
      state.push_back(sgd->momentum_buffer().to_dense());
    } else {
      const auto& adam = dynamic_cast<const torch::optim::AdamWParamState&>(*found->second);
      state.insert(state.end(), {adam.exp_avg(), adam.exp_avg_sq(), at::full({}, adam.step())});
    }
  }
  return state;
}

struct Uneven {
  std::vector<int> batches;  // of each rank
  DistributedDataParallelOptions options = {
      .bucket_cap_mb = kManyBucketsCap, .first_bucket_cap_mb = kManyBucketsCap, .overlap_communication = true};
  JoinOptions join = {};
  MakeOptimizer make_optimizer = sgd_with_momentum;
  int epochs = 1;         // in each, every rank has its neighbour's number of batches of the one before
  int micro_batches = 1;  // of a batch; all but the last under no_sync
  bool grads_to_none = true;
  bool steps_when_out = true;

  int world() const { return static_cast<int>(batches.size()); }
  int batches_of(int rank, int epoch) const { return batches[static_cast<std::size_t>((rank + epoch) % world())]; }
  int steps() const { return *std::max_element(batches.begin(), batches.end()); }

  // Rows of a batch: unequal, where that is allowed for.
  int rows(int rank, int step) const { return options.weight_by_samples ? 2 + (rank + step) % 3 : 4; }

  at::Tensor loss(const Forward& forward, int rank, int epoch, int step, int micro) const {
    const auto batch = Batch::of_step(((epoch * 10 + rank) * 10 + step) * 10 + micro, rows(rank, step));
    return squared_error(forward(batch.input), batch.target) / micro_batches;
  }

  // The share of a rank that is in its loop in the mean.
  double weight(int rank, int epoch, int step) const {
    double total = 0;
    for (int other = 0; other < world(); ++other)
      if (step < batches_of(other, epoch)) total += options.weight_by_samples ? rows(other, step) : 1;
    if (options.weight_by_samples) return rows(rank, step) / total;
    return 1 / (join.divide_by_initial_world_size ? world() : total);
  }

  template <class Net>
  void train_alone(Net& net, torch::optim::Optimizer& optimizer) const {
    for (int epoch = 0; epoch < epochs; ++epoch)
      for (int step = 0; step < steps(); ++step) {
        optimizer.zero_grad(grads_to_none);
        train_step_alone(net, epoch, step);
        optimizer.step();
      }
  }

  // Each rank starts from the same buffers; those of the lowest rank in its loop stay.
  template <class Net>
  void train_step_alone(Net& net, int epoch, int step) const {
    std::vector<at::Tensor> before, after;
    for (const auto& buffer : net.buffers()) before.push_back(buffer.clone());
    const at::AutoGradMode with_graph(true);
    for (int rank = 0; rank < world(); ++rank) {
      if (step >= batches_of(rank, epoch)) continue;
      copy_into(net.buffers(), before);
      for (int micro = 0; micro < micro_batches; ++micro)
        (loss([&](const auto& x) { return net.forward(x); }, rank, epoch, step, micro) * weight(rank, epoch, step))
            .backward();
      if (after.empty())
        for (const auto& buffer : net.buffers()) after.push_back(buffer.clone());
    }
    copy_into(net.buffers(), after);
  }

  static void copy_into(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < values.size(); ++i) tensors[i].copy_(values[i]);
  }

  template <class Model>
  void train_epoch(Model& model, torch::optim::Optimizer& optimizer, int rank, int epoch) const {
    auto joined = model->join(join);
    const auto forward = [&](const auto& x) { return model(x); };
    for (int step = 0; step < batches_of(rank, epoch); ++step) {
      optimizer.zero_grad(grads_to_none);
      if (options.weight_by_samples) model->set_samples(rows(rank, step));
      for (int micro = 0; micro < micro_batches; ++micro) {
        std::optional<NoSync> guard;
        if (micro + 1 < micro_batches) guard.emplace(model->no_sync());
        loss(forward, rank, epoch, step, micro).backward();
      }
      optimizer.step();
    }
    if (steps_when_out)
      joined.finish([&] { optimizer.step(); });
    else
      joined.finish();
  }

  template <class Net>
  void expect_as_alone(const Group& group) const {
    torch::manual_seed(3);
    Net reference;
    torch::manual_seed(3 + static_cast<std::uint64_t>(group->rank()));
    const auto net = std::make_shared<Net>();
    const auto reference_optimizer = make_optimizer(reference.parameters()),
               optimizer = make_optimizer(net->parameters());
    train_alone(reference, *reference_optimizer);
    DistributedDataParallel model(net, group, options);
    for (int epoch = 0; epoch < epochs; ++epoch) train_epoch(model, *optimizer, group->rank(), epoch);
    expect_same(*group, named_tensors(*net), named_tensors(reference));
    if (!steps_when_out) return;
    const auto state = state_of(*optimizer, net->parameters());
    const auto expected = state_of(*reference_optimizer, reference.parameters());
    ASSERT_EQ(state.size(), expected.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_TRUE(close(state[i], expected[i], 1e-10)) << "state " << i;
      EXPECT_TRUE(same_on_all_ranks(*group, state[i])) << "state " << i;
    }
  }

  template <class Net>
  void expect_as_alone() const {
    run_ranks(world(), [this](const Group& group) { expect_as_alone<Net>(group); });
  }

  static torch::OrderedDict<std::string, at::Tensor> named_tensors(const torch::nn::Module& net) {
    auto tensors = net.named_parameters();
    tensors.update(net.named_buffers());
    return tensors;
  }
  static void expect_same(ProcessGroup& group, const torch::OrderedDict<std::string, at::Tensor>& tensors,
                          const torch::OrderedDict<std::string, at::Tensor>& expected) {
    for (const auto& entry : tensors) {
      EXPECT_TRUE(close(entry.value(), expected[entry.key()], 1e-10)) << entry.key();
      EXPECT_TRUE(same_on_all_ranks(group, entry.value())) << entry.key();
    }
  }
};

const std::vector<int> kTwoThreeFive{2, 3, 5};
constexpr JoinOptions kByActiveRanks{.divide_by_initial_world_size = false};

TEST(Join, LeavesTheWeightsAndMomentumOfOneProcessThatCountsMissingRanksAsZeros) {  // R38
  Uneven{.batches = kTwoThreeFive}.expect_as_alone<PerceptronImpl>();
}

TEST(Join, LeavesTheWeightsAndMomentumOfOneProcessThatLeavesMissingRanksOut) {  // R38
  Uneven{.batches = kTwoThreeFive, .join = kByActiveRanks}.expect_as_alone<PerceptronImpl>();
}

TEST(Join, LeavesTheSameStateOfAdamWOnAllRanks) {  // R38
  Uneven{.batches = kTwoThreeFive, .make_optimizer = adamw}.expect_as_alone<PerceptronImpl>();
  Uneven{.batches = kTwoThreeFive, .join = kByActiveRanks, .make_optimizer = adamw}.expect_as_alone<PerceptronImpl>();
}

TEST(Join, LetsAnyRankLeaveFirstOrAllAtOnceOrWithoutABatch) {
  for (const auto& batches : std::vector<std::vector<int>>{{1, 4}, {3, 1, 2}, {2, 2, 2}, {0, 2, 1}, {2, 0, 0}, {0, 0}})
    for (const bool by_all : {true, false})
      Uneven{.batches = batches, .join = {by_all}}.expect_as_alone<PerceptronImpl>();
}

TEST(Join, LeavesTheBuffersOfTheLastActiveRank) {  // R38
  for (const auto& batches : {kTwoThreeFive, {4, 1, 2}, {0, 3, 3}})
    Uneven{.batches = batches}.expect_as_alone<BatchNormedImpl>();
}

TEST(Join, WithoutAStepCopiesWeightsAndBuffersOfTheLastActiveRank) {
  for (const auto& batches : {kTwoThreeFive, {4, 1, 2}, {0, 3, 3}})
    Uneven{.batches = batches, .steps_when_out = false}.expect_as_alone<BatchNormedImpl>();
}

TEST(Join, FindsParametersThatNoRankInItsLoopHasUsed) {  // R38
  Uneven uneven{.batches = kTwoThreeFive};
  uneven.options.find_unused_parameters = true;
  for (const bool views : {true, false})
    for (const bool to_none : {true, false}) {
      uneven.options.gradient_as_bucket_view = views;
      uneven.grads_to_none = to_none;
      uneven.expect_as_alone<BranchingImpl>();
    }
}

TEST(Join, LearnsAStaticGraphOnlyInARanksOwnSteps) {
  Uneven uneven{.batches = {0, 1, 3}, .epochs = 3};
  uneven.options.static_graph = true;
  uneven.expect_as_alone<PartlyUsedImpl>();
  uneven.grads_to_none = false;
  uneven.expect_as_alone<PartlyUsedImpl>();
}

TEST(Join, LeavesRanksWithoutSamplesOut) {
  Uneven uneven{.batches = kTwoThreeFive, .epochs = 2};
  uneven.options.weight_by_samples = true;
  uneven.expect_as_alone<PerceptronImpl>();
}

TEST(Join, KeepsSparseGradientsSparse) {
  for (const auto& join : {JoinOptions{}, kByActiveRanks})
    Uneven{.batches = kTwoThreeFive, .join = join}.expect_as_alone<EmbeddedImpl>();
}

TEST(Join, CountsMicroBatchesUnderNoSyncAsOneStep) {
  Uneven{.batches = kTwoThreeFive, .micro_batches = 3}.expect_as_alone<PerceptronImpl>();
}

TEST(Join, CopiesBuffersOnceAStepThoughItsForwardRunsUnderNoSync) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<BatchNormedImpl>();
    DistributedDataParallel model(net, group);
    auto join = model->join();
    at::Tensor mean;
    for (int step = 0; step < 1 + group->rank(); ++step) {
      net->zero_grad();
      at::Tensor loss;
      {
        const auto guard = model->no_sync();
        loss = model(torch::randn({4, 8}, torch::kDouble)).pow(2).mean();
      }
      loss.backward();
      mean = net->last->weight.grad().clone();
    }
    join.finish([&] { mean = net->last->weight.grad().clone(); });
    EXPECT_TRUE(same_on_all_ranks(*group, mean));
    EXPECT_TRUE(same_on_all_ranks(*group, net->norm->running_var));
  });
}

TEST(Join, WorksWithACommunicationHookAndWithoutViews) {
  Uneven uneven{.batches = kTwoThreeFive, .join = kByActiveRanks};
  uneven.options.comm_hook = std::make_shared<PlainHook>();
  uneven.expect_as_alone<PerceptronImpl>();
  uneven.options.comm_hook = nullptr;
  uneven.options.gradient_as_bucket_view = false;
  uneven.expect_as_alone<PerceptronImpl>();
}

TEST(Join, ServesOneEpochAfterTheOther) {
  for (const auto& join : {JoinOptions{}, kByActiveRanks})
    Uneven{.batches = kTwoThreeFive, .join = join, .epochs = 3}.expect_as_alone<BatchNormedImpl>();
}

TEST(Join, IsFinishedOnce) {
  run_ranks(2, [](const Group& group) {
    DistributedDataParallel model(Perceptron(), group);
    auto join = model->join();
    join.finish();
    EXPECT_THROW(join.finish(), std::logic_error);
  });
}

TEST(Join, CopiesBuffersOfAModuleWithoutTrainableParameters) {
  struct CountingImpl : torch::nn::Module {
    explicit CountingImpl(int start) { count = register_buffer("count", torch::full({}, start, torch::kLong)); }
    torch::Tensor forward(torch::Tensor x) { return x * count.add_(1); }
    torch::Tensor count;
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<CountingImpl>(group->rank());
    DistributedDataParallel model(net, group);
    auto join = model->join();
    for (int step = 0; step < 2 + 3 * group->rank(); ++step) model(torch::ones({}));
    join.finish([] {});
    EXPECT_EQ(net->count.item<int>(), 2);
  });
}

}  // namespace
}  // namespace ddp
