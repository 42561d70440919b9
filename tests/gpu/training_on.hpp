#pragma once
/// training_on.hpp: data-parallel training on a device, and what it has to give.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "support/ranks.hpp"
#include "support/training.hpp"

namespace ddp::testing {

/// The gradient of its one weight is the input.
struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl(at::Device device, at::ScalarType dtype, std::int64_t elements = 33)
      : weight(register_parameter("weight", torch::ones({elements}, at::device(device).dtype(dtype)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return weight * x; }
  torch::Tensor weight;
};
TORCH_MODULE(OneWeight);

inline torch::Tensor all_values(const torch::nn::Module& net) {
  std::vector<torch::Tensor> flat;
  for (const auto& parameter : net.parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat).cpu();
}

/// Collective. Gradients in each step are those of one process on the whole batch, and weights are the same on all
/// ranks.
inline void expect_training_of_one_process(const std::shared_ptr<ProcessGroup>& group, at::Device device,
                                           DistributedDataParallelOptions options) {
  Perceptron net, twin;
  net->to(device);
  twin->to(device);
  options.bucket_cap_mb = options.first_bucket_cap_mb = 1e-3;  // several buckets
  DistributedDataParallel model(net, group, options);
  const auto optimizer = sgd_with_momentum(net->parameters()), twin_optimizer = sgd_with_momentum(twin->parameters());
  for (std::int64_t step = 0; step < 5; ++step) {
    const auto batch = Batch::of_step(step, 4L * group->size());
    const auto mine = batch.of_rank(group->rank(), group->size());
    optimizer->zero_grad();
    twin_optimizer->zero_grad();
    squared_error(model(mine.input.to(device)), mine.target.to(device)).backward();
    squared_error(twin(batch.input.to(device)), batch.target.to(device)).backward();
    expect_same_gradients(*net, *twin, 1e-9);
    optimizer->step();
    twin_optimizer->step();
  }
  EXPECT_TRUE(same_on_all_ranks(*group, all_values(*net)));
}

/// Collective. For a dtype of the parameters.
inline void expect_mean_of_gradients(const std::shared_ptr<ProcessGroup>& group, at::Device device,
                                     at::ScalarType dtype) {
  OneWeight net(device, dtype);
  DistributedDataParallel model(net, group);
  model(torch::full({33}, 1 + group->rank(), at::device(device).dtype(dtype))).sum().backward();
  const auto expected = torch::full({33}, (1 + group->size()) * 0.5, torch::kDouble);
  EXPECT_TRUE(torch::allclose(net->weight.grad().cpu().to(torch::kDouble), expected, 1e-2)) << dtype;
}

/// Collective. Each rank uses one row of its own.
inline void expect_mean_of_sparse_gradients(const std::shared_ptr<ProcessGroup>& group, at::Device device) {
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(group->size() + 1, 4).sparse(true));
  net->to(device);
  DistributedDataParallel model(net, group);
  model(torch::full({1}, group->rank(), at::device(device).dtype(torch::kLong))).sum().backward();
  auto expected = torch::full({group->size() + 1, 4}, 1.0 / group->size());
  expected[group->size()] = 0;
  EXPECT_TRUE(torch::allclose(net->weight.grad().to_dense().cpu(), expected));
}

}  // namespace ddp::testing
