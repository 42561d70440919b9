// LibTorch's NCCL as comm::DeviceBackend gives it, with one rank: a group of one makes no engine.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/device_backend.hpp"
#include "gpu/gpus.hpp"

namespace ddp::testing {
namespace {

using comm::BackendSetup;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr std::int64_t kSecondOfCycles = 1'500'000'000;

struct Engine {
  std::shared_ptr<const comm::DeviceBackend> kind = comm::device_backend("nccl");
  BackendSetup setup;
  BackendPtr backend;

  explicit Engine(at::Device gpu) {
    setup.store = c10::make_intrusive<c10d::HashStore>();
    setup.device = gpu;
    setup.is_broken = [] { return false; };
    setup.has_left = [](int) { return false; };
    kind->take(gpu);
    backend = kind->make(setup);
  }
};

c10::intrusive_ptr<c10d::Work> all_reduce(const BackendPtr& backend, const at::Tensor& tensor,
                                          c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return backend->allreduce(tensors, options);
}

TEST(NcclEngine, SumsAndAveragesWhatOneRankHas) {
  on_one_gpu([](at::Device gpu) {
    const Engine engine(gpu);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong})
      for (const auto op : {c10d::ReduceOp::SUM, c10d::ReduceOp::MAX, c10d::ReduceOp::AVG}) {
        if (op == c10d::ReduceOp::AVG && !at::isFloatingType(dtype)) continue;
        const auto tensor = torch::arange(1000, gpu).to(dtype);
        all_reduce(engine.backend, tensor, op)->synchronize();
        EXPECT_TRUE(torch::equal(tensor.cpu(), torch::arange(1000).to(dtype))) << dtype;
      }
  });
}

TEST(NcclEngine, HasOneIdentityForOneGpu) {
  on_one_gpu([](at::Device gpu) {
    const auto engine = comm::device_backend("nccl");
    const auto identity = engine->identity(gpu);
    EXPECT_EQ(identity.device.substr(0, 4), "GPU-");
    EXPECT_EQ(identity.device, engine->identity(gpu).device);
    EXPECT_EQ(identity.library.substr(0, 5), "NCCL ");
  });
}

// The kernel before it runs for a second; a host that waits for it sees its end.
TEST(NcclEngine, SynchronizeDoesNotWaitOnTheHost) {
  on_one_gpu([](at::Device gpu) {
    const Engine engine(gpu);
    const auto tensor = torch::ones({1000}, gpu);
    all_reduce(engine.backend, tensor)->synchronize();
    at::cuda::device_synchronize();
    at::cuda::CUDAEvent end_of_kernel;
    at::cuda::sleep(kSecondOfCycles);
    end_of_kernel.record();
    all_reduce(engine.backend, tensor)->synchronize();
    EXPECT_FALSE(end_of_kernel.query());
  });
}

TEST(NcclEngine, TheStreamThatSynchronizedComesBehindTheCommunication) {
  on_one_gpu([](at::Device gpu) {
    const Engine engine(gpu);
    const auto tensor = torch::zeros({1 << 20}, gpu);
    const auto side = c10::cuda::getStreamFromPool();
    at::cuda::device_synchronize();
    at::Tensor seen;
    {
      const c10::cuda::CUDAStreamGuard guard(side);
      at::cuda::sleep(kSecondOfCycles / 5);
      tensor.fill_(3);  // late, on that stream alone
      all_reduce(engine.backend, tensor)->synchronize();
      seen = tensor * 2;
    }
    at::cuda::device_synchronize();
    EXPECT_TRUE(torch::equal(seen.cpu(), torch::full({1 << 20}, 6.0F)));
  });
}

TEST(NcclEngine, KnowsWhetherAGraphIsCapturedAndLetsACallIntoIt) {
  on_one_gpu([](at::Device gpu) {
    const Engine engine(gpu);
    const auto tensor = torch::ones({1000}, gpu);
    all_reduce(engine.backend, tensor)->synchronize();
    at::cuda::device_synchronize();
    EXPECT_FALSE(engine.kind->is_capturing(gpu));
    at::cuda::CUDAGraph graph;
    {
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
      graph.capture_begin();
      EXPECT_TRUE(engine.kind->is_capturing(gpu));
      tensor.add_(1);
      all_reduce(engine.backend, tensor)->synchronize();
      tensor.mul_(2);
      graph.capture_end();
    }
    EXPECT_FALSE(engine.kind->is_capturing(gpu));
    for (int i = 0; i < 2; ++i) graph.replay();
    at::cuda::device_synchronize();
    EXPECT_TRUE(torch::equal(tensor.cpu(), torch::full({1000}, 10.0F)));
  });
}

TEST(NcclEngine, SplitsOffAGroupOfItsRank) {
  on_one_gpu([](at::Device gpu) {
    const Engine engine(gpu);
    auto setup = engine.setup;
    setup.store = c10::make_intrusive<c10d::PrefixStore>("part", engine.setup.store);
    const auto part = engine.kind->split(*engine.backend, setup, {0});
    ASSERT_TRUE(part);
    const auto tensor = torch::ones({10}, gpu);
    all_reduce(part, tensor)->synchronize();
    EXPECT_TRUE(torch::equal(tensor.cpu(), torch::ones({10})));
  });
}

TEST(NcclEngine, ReducesMemoryOfItsOwnWhereItHasAny) {
  on_one_gpu([](at::Device gpu) {
    const Engine engine(gpu);
    if (!engine.backend->supportsTensorAlloc(gpu.index())) {
      std::puts("NCCL registers no memory on this GPU");
      return;
    }
    const auto bytes = engine.backend->allocateTensor(1 << 20, at::TensorOptions().dtype(at::kByte).device(gpu));
    const auto tensor = bytes.view(at::kFloat);
    tensor.fill_(3);
    all_reduce(engine.backend, tensor, c10d::ReduceOp::AVG)->synchronize();
    EXPECT_TRUE(torch::equal(tensor.cpu(), torch::full({1 << 18}, 3.0F)));
  });
}

// The process goes on, without a watchdog of NCCL's that ends it.
TEST(NcclEngine, AbortLeavesTheProcessAndItsGpuAlone) {
  on_one_gpu([](at::Device gpu) {
    const Engine engine(gpu);
    const auto tensor = torch::ones({10}, gpu);
    all_reduce(engine.backend, tensor)->synchronize();
    engine.backend->abort();
    EXPECT_EQ(torch::ones({10}, gpu).sum().item<float>(), 10);
  });
}

}  // namespace
}  // namespace ddp::testing
