#pragma once
/// one_process.hpp: trains a network wrapped on all ranks, and its twin in one process on all ranks' batches.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/optim.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp::testing {

/// Small enough that every parameter of these networks has a bucket of its own.
inline const DistributedDataParallelOptions kBucketEach{
    .bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6, .overlap_communication = true};

/// `options` with as many buckets, which leave early also where ranks share cores.
inline DistributedDataParallelOptions with_bucket_each(DistributedDataParallelOptions options) {
  options.bucket_cap_mb = kBucketEach.bucket_cap_mb;
  options.first_bucket_cap_mb = kBucketEach.first_bucket_cap_mb;
  options.overlap_communication = kBucketEach.overlap_communication;
  return options;
}

/// Layers [n, 4] to [n, 4] in float64, of which each call uses those of its route, in its order.
struct RoutesImpl : torch::nn::Module {
  explicit RoutesImpl(int count = 3) {
    torch::manual_seed(7);
    for (int i = 0; i < count; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(4, 4)));
    to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x, const std::vector<int>& route) {
    x = x * 1.5;
    for (const auto i : route) x = torch::tanh(layers.at(i)(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Routes);

/// One micro-batch of one rank.
struct Turn {
  int rank, step, micro;

  /// [3, 4], another one in each turn; it requires gradients, so that a loss without parameters has a backward too.
  torch::Tensor input() const {
    torch::manual_seed(static_cast<std::uint64_t>(1 + rank + 10 * micro + 1000 * step));
    return torch::randn({3, 4}, torch::kDouble).requires_grad_();
  }
};

/// The network itself, called as its wrapper is.
template <class M>
struct Plain {
  std::shared_ptr<M> net;
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    return net->forward(std::forward<Args>(args)...);
  }
};

enum class Zero { to_none, in_place, never };

struct TrainingPlan {
  int steps = 4;
  int micro_batches = 1;  ///< all but the last one under no_sync
  Zero zero = Zero::to_none;
  MakeOptimizer make_optimizer = sgd_with_momentum;
  bool step_in_backward = false;  ///< of the wrapped network's optimizer, which is one of ddp::optim
};

/// Collective. Gradients, undefined ones too, and values are those of `reference`, and bit for bit the same on all
/// ranks.
inline void expect_equal_training(ProcessGroup& group, const torch::nn::Module& net, const torch::nn::Module& reference,
                                  const std::string& when) {
  std::vector<torch::Tensor> all;
  const auto expected = reference.named_parameters();
  for (const auto& entry : net.named_parameters()) {
    const auto& name = entry.key();
    const auto& grad = entry.value().grad();
    const auto& expected_grad = expected[name].grad();
    EXPECT_EQ(grad.defined(), expected_grad.defined()) << name << ' ' << when;
    if (grad.defined() && expected_grad.defined()) {
      EXPECT_TRUE(close(grad, expected_grad, 1e-10)) << name << ' ' << when << '\n' << grad << expected_grad;
    }
    EXPECT_TRUE(close(entry.value(), expected[name], 1e-10)) << name << ' ' << when;
    all.push_back(entry.value().detach().flatten());
    all.push_back(torch::full({1}, grad.defined(), torch::kDouble));
    if (grad.defined()) all.push_back(grad.flatten());
  }
  EXPECT_TRUE(same_on_all_ranks(group, torch::cat(all))) << when;
}

/// Collective. backward(call, net, turn, share) runs a rank's backward, of `share` x its loss, by calling `call`: that
/// is the wrapper of `net`, or, in the one process that trains on the mean of all ranks' losses, its twin `net` itself.
/// Gradients and weights are compared in each step.
template <class Make, class Backward>
void expect_equal_backwards(const std::shared_ptr<ProcessGroup>& group, const DistributedDataParallelOptions& options,
                            const Make& make, const Backward& backward, const TrainingPlan& plan = {}) {
  const auto net = make(), twin = make();
  const Plain<typename decltype(make())::element_type> alone{twin};
  DistributedDataParallel model(net, group, options);
  const auto optimizer = plan.make_optimizer(net->parameters());
  const auto twin_optimizer = plan.make_optimizer(twin->parameters());
  if (plan.step_in_backward) dynamic_cast<optim::FusedOptimizer&>(*optimizer).step_in_backward(model);
  for (int step = 0; step < plan.steps; ++step) {
    if (plan.zero != Zero::never) {
      optimizer->zero_grad(plan.zero == Zero::to_none);
      twin_optimizer->zero_grad(plan.zero == Zero::to_none);
    }
    for (int micro = 0; micro < plan.micro_batches; ++micro) {
      std::optional<NoSync> guard;
      if (micro + 1 < plan.micro_batches) guard.emplace(model->no_sync());
      backward(model, *net, Turn{group->rank(), step, micro}, 1.0);
      for (int rank = 0; rank < group->size(); ++rank)
        backward(alone, *twin, Turn{rank, step, micro}, 1.0 / group->size());
    }
    optimizer->step();
    twin_optimizer->step();
    expect_equal_training(*group, *net, *twin, "after step " + std::to_string(step));
  }
}

/// Calls run(group, options) with many buckets and one, with and without views, on 2 and 3 ranks.
template <class Run>
void everywhere(const DistributedDataParallelOptions& options, const Run& run) {
  for (const int world : {2, 3})
    run_ranks(world, [&](const std::shared_ptr<ProcessGroup>& group) {
      for (const bool views : {true, false})
        for (const bool many : {true, false}) {
          auto variant = many ? with_bucket_each(options) : options;
          variant.gradient_as_bucket_view = views;
          SCOPED_TRACE("views " + std::to_string(views) + ", many buckets " + std::to_string(many));
          run(group, variant);
        }
    });
}

/// Everywhere: expect_equal_backwards() where one backward of loss(call, net, turn) is all.
template <class Make, class Loss>
void expect_equal_to_one_process(const DistributedDataParallelOptions& options, const Make& make, const Loss& loss,
                                 const TrainingPlan& plan = {}) {
  const auto backward = [&](auto& call, auto& net, const Turn& turn, double share) {
    (loss(call, net, turn) * share).backward();
  };
  everywhere(options, [&](const std::shared_ptr<ProcessGroup>& group, const DistributedDataParallelOptions& variant) {
    expect_equal_backwards(group, variant, make, backward, plan);
  });
}

/// What f throws as an E; "no such exception" where it throws none.
template <class E, class F>
std::string text_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "no such exception";
}

}  // namespace ddp::testing
