// What data-parallel training takes of a GPU's memory.
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.hpp"
#include "gpu/gpus.hpp"
#include "gpu/training_on.hpp"

namespace ddp::testing {
namespace {

constexpr std::int64_t kMebibyte = 1 << 20, kElements = 8 * kMebibyte;  // 32 MiB of float32 a weight

std::int64_t held_bytes(at::Device gpu) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(gpu.index()).allocated_bytes[0].current;
}

/// Two large weights, [kElements] each.
struct WideImpl : torch::nn::Module {
  explicit WideImpl(at::Device gpu) {
    for (const auto* name : {"first", "second"})
      weights.push_back(register_parameter(name, torch::ones({kElements}, gpu)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return (weights[0].sum() + weights[1].sum()) * x; }
  std::vector<torch::Tensor> weights;
};
TORCH_MODULE(Wide);

TEST_P(OnSharedGpu, BucketsTakeWhatBucketBytesSays) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    Wide net(gpu);
    const auto before = held_bytes(gpu);
    DistributedDataParallel model(net, group);
    EXPECT_GE(model->bucket_bytes(), 2 * kElements * 4);
    EXPECT_LE(model->bucket_bytes(), 2 * kElements * 4 + kMebibyte);
    model(torch::ones({1}, gpu)).sum().backward();
    model(torch::ones({1}, gpu)).sum().backward();
    // Gradients are views of the buckets, so there is nothing beside them.
    const auto held = held_bytes(gpu) - before;
    EXPECT_GE(held, model->bucket_bytes() - kMebibyte);
    EXPECT_LE(held, model->bucket_bytes() + 4 * kMebibyte);
  });
}

TEST_P(OnSharedGpu, StepsLeaveNoMemoryBehind) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    OneWeight net(gpu, torch::kFloat, kMebibyte);  // gradients of 4 MiB
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    const auto input = torch::ones({kMebibyte}, gpu);
    std::int64_t after_five = 0;
    for (int step = 0; step < 25; ++step) {
      optimizer.zero_grad();
      model(input).sum().backward();
      optimizer.step();
      if (step == 4) after_five = held_bytes(gpu);
    }
    EXPECT_LE(held_bytes(gpu),
              after_five + 4 * kMebibyte);  // twenty times as much would be held if one were lost a step
  });
}

TEST(GpuMemory, AWrapperOfAWorldOfOneTakesNone) {
  on_one_gpu([](at::Device gpu) {
    ProcessGroupOptions options;
    options.backend = "nccl";
    options.environment = Environment{};
    const auto group = init_process_group(options);
    EXPECT_EQ(group->device(), gpu);
    Wide net(gpu);
    const auto before = held_bytes(gpu);
    DistributedDataParallel model(net, group);
    EXPECT_EQ(model->bucket_bytes(), 0);
    EXPECT_EQ(held_bytes(gpu), before);
  });
}

}  // namespace
}  // namespace ddp::testing
