// Ranks whose loops have different numbers of batches, against one process that sees every batch.

#include "ddp/join.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <optional>

#include "base/exit_code.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/metrics.hpp"
#include "ddp/run.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;
using Forward = std::function<at::Tensor(const at::Tensor&)>;

constexpr double kManyBucketsCap = 0.0001;

struct NormedImpl : torch::nn::Module {
  NormedImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 6));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(6, 4));
};

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
    Uneven{.batches = batches}.expect_as_alone<NormedImpl>();
}

TEST(Join, WithoutAStepCopiesWeightsAndBuffersOfTheLastActiveRank) {
  for (const auto& batches : {kTwoThreeFive, {4, 1, 2}, {0, 3, 3}})
    Uneven{.batches = batches, .steps_when_out = false}.expect_as_alone<NormedImpl>();
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
    const auto net = std::make_shared<NormedImpl>();
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
    Uneven{.batches = kTwoThreeFive, .join = join, .epochs = 3}.expect_as_alone<NormedImpl>();
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

// One step of a wrapped perceptron that misses a layer's gradients if `misses`.
struct CarelessImpl : PerceptronImpl {
  torch::Tensor forward(torch::Tensor x, bool misses) {
    return misses ? torch::tanh(layers[0](x)) : PerceptronImpl::forward(x);
  }
};

template <class F>
std::string gradient_error(F&& f) {
  try {
    f();
  } catch (const GradientError& error) {
    return error.what();
  }
  return "no GradientError";
}

TEST(Join, BringsAnActiveRanksErrorToRanksThatHaveLeft) {
  for (const bool by_all : {true, false})
    run_ranks(3, [by_all](const Group& group) {
      const auto net = std::make_shared<CarelessImpl>();
      DistributedDataParallel model(net, group);
      const auto x = torch::full({2, 8}, 1.0 + group->rank(), torch::kDouble);
      {
        auto join = model->join({.divide_by_initial_world_size = by_all});
        if (group->rank() == 2) {
          model(x, false).sum().backward();
          EXPECT_TRUE(contains(gradient_error([&] { model(x, true).sum().backward(); }), "on rank 2: no gradient for"));
        } else {
          EXPECT_TRUE(contains(gradient_error([&] { join.finish([] {}); }), "on rank 2: no gradient for"));
        }
        EXPECT_FALSE(net->layers[3]->bias.grad().defined());
      }
      // All know it, so all can go on: as ordinary ranks.
      net->zero_grad();
      (model(x, false).sum() * (1 + group->rank())).backward();
      EXPECT_TRUE(close(net->layers[3]->bias.grad(), torch::full({4}, 4.0, torch::kDouble), 1e-12));
    });
}

TEST(Join, CanGoOnAfterAnErrorOfAnActiveRank) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<CarelessImpl>();
    DistributedDataParallel model(net, group);
    const auto x = torch::full({2, 8}, 1.0 + group->rank(), torch::kDouble);
    auto join = model->join();
    std::vector<at::Tensor> means;
    const auto step = [&] { means.push_back(net->layers[3]->bias.grad().clone()); };
    if (group->rank() == 1) {
      EXPECT_NE(gradient_error([&] { model(x, true).sum().backward(); }), "no GradientError");
      model(x, false).sum().backward();
      step();
    } else {
      EXPECT_NE(gradient_error([&] { join.finish(step); }), "no GradientError");
    }
    join.finish(step);
    ASSERT_EQ(means.size(), 1u);
    EXPECT_TRUE(torch::equal(means[0], torch::full({4}, 1.0, torch::kDouble)));
    EXPECT_FALSE(net->layers[3]->bias.grad().defined());
  });
}

// Throws in backward on the ranks asked for.
struct Fuse : torch::autograd::Function<Fuse> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, bool blows) {
    context->saved_data["blows"] = blows;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["blows"].toBool()) throw std::runtime_error("blown");
    return {gradients[0], at::Tensor()};
  }
};
struct FusedImpl : torch::nn::Module {
  FusedImpl() { to(torch::kDouble); }
  torch::Tensor forward(torch::Tensor x, bool blows) { return last(Fuse::apply(norm(first(x)), blows)); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 3));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(3, 3));
};

TEST(Join, TellsActiveRanksOfTheBackwardInWhichALeavingRankFailed) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<FusedImpl>();
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
    const auto x = torch::randn({4, 3}, torch::kDouble);
    auto join = model->join();
    std::vector<at::Tensor> means;
    const auto step = [&] { means.push_back(net->last->bias.grad().clone()); };
    if (group->rank() == 0) {
      EXPECT_THROW(model(x, true).sum().backward(), std::runtime_error);  // swallowed: the loop is over
    } else {
      EXPECT_TRUE(contains(gradient_error([&] { model(x, false).sum().backward(); }), "on rank 0: its backward()"));
      model(x, false).sum().backward();
      step();
    }
    join.finish(step);
    ASSERT_EQ(means.size(), 1u);
    EXPECT_TRUE(torch::equal(means[0], torch::full({3}, 2.0, torch::kDouble)));
    EXPECT_TRUE(same_on_all_ranks(*group, net->norm->running_mean));
  });
}

TEST(Join, ThatAnExceptionDestroysCommunicatesNothing) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<NormedImpl>();
    DistributedDataParallel model(net, group);
    const auto x = torch::full({2, 8}, 1.0 + group->rank(), torch::kDouble);
    const auto loop = [&](auto&& end) {
      const auto join = model->join();
      end();
    };
    if (group->rank() == 0) {
      EXPECT_THROW(loop([] { throw std::runtime_error("no more data"); }), std::runtime_error);
    }
    model(x).sum().backward();  // would hang, or meet another call, if rank 0 were a call ahead
    EXPECT_TRUE(same_on_all_ranks(*group, net->last->weight.grad()));
    EXPECT_TRUE(torch::equal(net->last->bias.grad(), torch::full({4}, 2.0, torch::kDouble)));
  });
}

TEST(Join, NamesARankThatIsKilledWhileOthersHaveLeft) {
  const auto outcomes = observe_ranks(3, [](const Environment& environment) {
    const auto group = init_process_group({.timeout = 5min, .environment = environment});
    Perceptron net;
    DistributedDataParallel model(net, group);
    auto join = model->join();
    const auto x = torch::ones({2, 8}, torch::kDouble);
    try {
      for (int step = 0; step < 1 + 3 * group->rank(); ++step) {
        if (step == 2 && group->rank() == 1) ::raise(SIGKILL);
        model(x).sum().backward();
      }
      join.finish();
      ADD_FAILURE() << "no exception";
    } catch (const PeerLostError& error) {
      EXPECT_EQ(error.peer(), 1) << error.what();
    }
  });
  for (const auto& outcome : outcomes) {
    if (outcome.rank == 1)
      EXPECT_EQ(outcome.signal, SIGKILL) << outcome.output;
    else
      EXPECT_TRUE(outcome.succeeded()) << outcome.rank << ": " << outcome.output;
  }
}

TEST(Join, LeftOutIsAnErrorThatSaysWhichRankHasLeftAfterWhichStep) {  // R38, R67
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = observe_ranks(3, [](const Environment& environment) {
    const int code = run([&] {
      const auto group = init_process_group({.timeout = 5min, .environment = environment});
      DistributedDataParallel model(Perceptron(), group);
      for (int step = 0; step < (group->rank() == 1 ? 3 : 5); ++step)
        model(torch::ones({2, 8}, torch::kDouble)).sum().backward();
    });
    EXPECT_EQ(code, environment.rank == 1 ? 0 : kLostPeerExitCode);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.succeeded()) << outcome.rank << ": " << outcome.output;
    if (outcome.rank == 1) continue;
    EXPECT_TRUE(contains(outcome.output, "rank 1 left the group after call #"));
    EXPECT_TRUE(contains(outcome.output, "after 3 steps"));
    EXPECT_TRUE(contains(outcome.output, "unequal numbers of batches"));
  }
}

}  // namespace
}  // namespace ddp
