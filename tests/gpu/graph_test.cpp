// A whole step recorded into a CUDA graph.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.hpp"
#include "gpu/gpus.hpp"
#include "gpu/training_on.hpp"

namespace ddp::testing {
namespace {

/// A wrapped network and its input in memory that a graph reads.
struct Step {
  Perceptron net;
  DistributedDataParallel<PerceptronImpl> model{nullptr};
  torch::Tensor input, target;
  std::unique_ptr<torch::optim::SGD> optimizer;

  Step(const std::shared_ptr<ProcessGroup>& group, at::Device gpu) {
    net->to(gpu);
    DistributedDataParallelOptions options;
    options.static_graph = true;
    model = DistributedDataParallel(net, group, options);
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), 0.05);
    input = torch::zeros({4, 8}, at::device(gpu).dtype(torch::kDouble));
    target = torch::zeros({4, 4}, at::device(gpu).dtype(torch::kDouble));
  }
  void load(const Batch& batch) {
    input.copy_(batch.input);
    target.copy_(batch.target);
  }
  void run() {
    optimizer->zero_grad();
    squared_error(model(input), target).backward();
    optimizer->step();
  }
};

// What `group`'s rank sees of a step's batch.
Batch batch_of(const ProcessGroup& group, int step) {
  return Batch::of_step(step, 4L * group.size()).of_rank(group.rank(), group.size());
}

// Warm steps, then a recorded one that is replayed on new data: as if all had run one by one.
void expect_graph_trains_as_steps(const std::shared_ptr<ProcessGroup>& group, at::Device gpu) {
  Step recorded(group, gpu), one_by_one(group, gpu);
  at::cuda::device_synchronize();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  int step = 0;
  for (; step < 4; ++step) {
    recorded.load(batch_of(*group, step));
    recorded.run();
  }
  at::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  recorded.run();
  graph.capture_end();
  for (; step < 8; ++step) {
    recorded.load(batch_of(*group, step));
    graph.replay();
  }
  for (int i = 0; i < step; ++i) {
    one_by_one.load(batch_of(*group, i));
    one_by_one.run();
  }
  at::cuda::device_synchronize();
  EXPECT_TRUE(close(all_values(*recorded.net), all_values(*one_by_one.net), 1e-9));
  EXPECT_TRUE(same_on_all_ranks(*group, all_values(*recorded.net)));
}

TEST(CudaGraph, HoldsAStepThroughTheWrapperOfAWorldOfOne) {
  on_one_gpu([](at::Device gpu) {
    ProcessGroupOptions options;
    options.backend = "nccl";
    options.environment = Environment{};
    expect_graph_trains_as_steps(init_process_group(options), gpu);
  });
}

class CudaGraphOfRanks : public SeveralGpus {};

TEST_F(CudaGraphOfRanks, HoldsAStepWithItsAllReduces) {
  on_gpus(2, [](const auto& group, at::Device gpu) { expect_graph_trains_as_steps(group, gpu); });
}

}  // namespace
}  // namespace ddp::testing
