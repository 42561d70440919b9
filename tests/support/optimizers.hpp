#pragma once
/// optimizers.hpp: LibTorch's optimizers beside those of optim.hpp, and training by each of two.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/optim.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/training.hpp"

namespace ddp::testing {

/// Every other parameter is in the second group.
template <class Optimizer, class Options>
MakeOptimizer make_with_two_groups(const Options& options, const Options& of_second) {
  return [=](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> groups[2];
    for (std::size_t i = 0; i < parameters.size(); ++i) groups[i % 2].push_back(parameters[i]);
    auto optimizer = std::make_unique<Optimizer>(groups[0], options);
    optimizer->add_param_group({groups[1], std::make_unique<Options>(of_second)});
    return optimizer;
  };
}

/// LibTorch's optimizer and ours of the same kind and options.
struct OptimizerPair {
  std::string name;
  MakeOptimizer theirs, ours;
};

template <class LibTorchs, class Options>
OptimizerPair pair_of(const std::string& name, const Options& options, const Options& of_second) {
  return {name, make_with_two_groups<LibTorchs>(options, of_second),
          make_with_two_groups<optim::Fused<LibTorchs>>(options, of_second)};
}

inline std::vector<OptimizerPair> optimizer_pairs() {
  return {pair_of<torch::optim::SGD>("SGD", optim::SGDOptions(0.05).momentum(0.9).nesterov(true),
                                     optim::SGDOptions(0.02).weight_decay(0.1)),
          pair_of<torch::optim::Adam>("Adam", optim::AdamOptions(0.01).weight_decay(0.1), optim::AdamOptions(0.003)),
          pair_of<torch::optim::AdamW>("AdamW", optim::AdamWOptions(0.01),
                                       optim::AdamWOptions(0.003).weight_decay(0.3).amsgrad(true))};
}

/// Collective. Values are those of `reference`, to 1e-12 or, of float32, to its rounding; bit for bit the same on all
/// ranks; and others than `start`.
inline void expect_equal_values(ProcessGroup& group, const std::vector<at::Tensor>& values,
                                const std::vector<at::Tensor>& reference, const std::vector<at::Tensor>& start) {
  ASSERT_EQ(values.size(), reference.size());
  bool has_changed = false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(close(values[i], reference[i], values[i].scalar_type() == at::kDouble ? 1e-12 : 1e-4)) << i;
    EXPECT_TRUE(same_on_all_ranks(group, values[i])) << i;
    has_changed |= !torch::equal(values[i], start[i]);
  }
  EXPECT_TRUE(has_changed);
}

inline std::vector<at::Tensor> values_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

/// train(model, optimizer, net, group) by both of each pair, on networks that make() makes alike, with views of many
/// buckets and with one that is copied out of, on 1 to 3 ranks: the same values.
template <class Make, class Train>
void expect_both_train_alike(const DistributedDataParallelOptions& options, const Make& make, const Train& train) {
  for (int world = 1; world <= 3; ++world)
    run_ranks(world, [&](const std::shared_ptr<ProcessGroup>& group) {
      for (const auto& pair : optimizer_pairs())
        for (const bool views : {true, false}) {
          SCOPED_TRACE(pair.name + ", views " + std::to_string(views));
          auto variant = views ? with_bucket_each(options) : options;
          variant.gradient_as_bucket_view = views;
          const auto trained = [&](const MakeOptimizer& make_optimizer) {
            const auto net = make();
            DistributedDataParallel model(net, group, variant);
            const auto optimizer = make_optimizer(net->parameters());
            train(model, *optimizer, *net, *group);
            return values_of(*net);
          };
          const auto theirs = trained(pair.theirs);
          expect_equal_values(*group, trained(pair.ours), theirs, values_of(*make()));
        }
    });
}

}  // namespace ddp::testing
