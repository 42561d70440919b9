// The NCCL backend where no GPU is to be seen: all that can be shown of it on such a machine.
#include <gtest/gtest.h>

#include <torch/csrc/cuda/nccl.h>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/backend.hpp"
#include "comm/device_backend.hpp"
#include "ddp/process_group.hpp"

namespace ddp::comm {
namespace {

class BackendNccl : public ::testing::Test {
 protected:
  // A machine with GPUs shows none then; CUDA reads it when it is first asked.
  BackendNccl() { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); }
};

template <class Call>
std::string refusal(Call call) {
  try {
    call();
    return "no exception";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST_F(BackendNccl, WithoutAGpuInitIsAConfigError) {
  ProcessGroupOptions options;
  options.backend = "nccl";
  options.environment = Environment{};
  const auto text = refusal([&] { init_process_group(options); });
  EXPECT_EQ(text.find("rank 0 of 1: init_process_group: this process sees no CUDA device, and is to work on one;"), 0U)
      << text;
}

TEST_F(BackendNccl, LibTorchsRefusalWithoutAGpuBecomesTheSameConfigError) {
  BackendSetup setup;
  setup.store = c10::make_intrusive<c10d::HashStore>();
  setup.device = at::Device(at::kCUDA, 0);
  const auto text = refusal([&] { device_backend("nccl")->make(setup); });
  EXPECT_EQ(text.find("rank 0 of 1: init_process_group: this process sees no CUDA device"), 0U) << text;
}

TEST_F(BackendNccl, AutoIsABackendOfTheCpuWithoutAGpu) {
  EXPECT_EQ(choose_backend("auto", {}), "auto");
  EXPECT_EQ(choose_backend("auto", {}, at::Device(at::kCUDA)), "nccl");  // asked for: the error says what is missing
  EXPECT_EQ(choose_backend("auto", {}, at::Device(at::kCPU)), "auto");
}

TEST_F(BackendNccl, TheVersionCompiledForIsTheOneThatLibTorchHas) {
  const auto version = torch::cuda::nccl::version();  // 16 bits each, the major number in front
  const auto part = [&](int shift) { return std::to_string(version >> shift & 0xffff); };
  EXPECT_EQ(nccl_version(), part(32) + '.' + part(16) + '.' + part(0));
}

}  // namespace
}  // namespace ddp::comm
