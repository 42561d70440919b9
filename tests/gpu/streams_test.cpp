// Gradients of several streams, and kernels that run late.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.hpp"
#include "gpu/gpus.hpp"
#include "gpu/training_on.hpp"

namespace ddp::testing {
namespace {

constexpr std::int64_t kLong = 200'000'000;  // cycles, more than a tenth of a second

/// Two weights; the second one's part of forward, and so of backward, runs on a stream of its own, where a long kernel
/// comes before its gradient.
struct TwoStreamsImpl : torch::nn::Module {
  explicit TwoStreamsImpl(at::Device gpu) : side(c10::cuda::getStreamFromPool(false, gpu.index())) {
    for (const auto* name : {"here", "aside"}) weights.push_back(register_parameter(name, torch::ones({4096}, gpu)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto current = c10::cuda::getCurrentCUDAStream();
    at::cuda::CUDAEvent begin, end;
    begin.record(current);
    torch::Tensor aside;
    {
      const c10::cuda::CUDAStreamGuard guard(side);
      begin.block(side);
      aside = weights[1] * x;
      aside.register_hook([](const torch::Tensor& grad) {
        at::cuda::sleep(kLong);
        return grad * 3;
      });
      end.record(side);
    }
    end.block(current);
    aside.record_stream(current);
    x.record_stream(side);
    return weights[0] * x + aside;
  }
  c10::cuda::CUDAStream side;
  std::vector<torch::Tensor> weights;
};
TORCH_MODULE(TwoStreams);

TEST_P(OnSharedGpu, AGradientOfAnotherStreamArrives) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    for (const bool views : {true, false}) {
      TwoStreams net(gpu);
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = views;
      options.bucket_cap_mb = options.first_bucket_cap_mb = 1e-3;
      DistributedDataParallel model(net, group, options);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        model(torch::full({4096}, 1.0F + static_cast<float>(group->rank() + step), gpu)).sum().backward();
        const float mean = 1.5F + static_cast<float>(step);
        EXPECT_TRUE(torch::equal(net->weights[0].grad().cpu(), torch::full({4096}, mean))) << step;
        EXPECT_TRUE(torch::equal(net->weights[1].grad().cpu(), torch::full({4096}, 3 * mean))) << step;
      }
    }
  });
}

TEST_P(OnSharedGpu, AWholeStepOnAnotherStreamIsRight) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    at::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    expect_training_of_one_process(group, gpu, {});
  });
}

TEST_P(OnSharedGpu, ACallComesBehindWhatItsStreamHasYetToDo) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    auto tensor = torch::zeros({1 << 20}, gpu);
    const auto side = c10::cuda::getStreamFromPool();
    at::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(side);
    at::cuda::sleep(kLong);
    tensor.fill_(1 + group->rank());
    const auto work = group->all_reduce_async(tensor);
    work.wait();
    const auto doubled = tensor * 2;
    EXPECT_TRUE(torch::equal(doubled.cpu(), torch::full({1 << 20}, 6.0F)));
  });
}

}  // namespace
}  // namespace ddp::testing
