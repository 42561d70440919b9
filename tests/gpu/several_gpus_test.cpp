// Ranks with a GPU each, over NCCL.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <csignal>

#include "gpu/collectives.hpp"
#include "gpu/gpus.hpp"
#include "gpu/training_on.hpp"
#include "support/thrown.hpp"

namespace ddp::testing {
namespace {

constexpr std::int64_t kSecondOfCycles = 1'500'000'000;

TEST_F(SeveralGpus, CollectivesGiveWhatTheCpuGives) {
  on_gpus(std::min(visible_gpus(), 8), [](const auto& group, at::Device gpu) {
    EXPECT_EQ(group->backend(), "nccl");
    EXPECT_EQ(gpu.index(), group->rank());
    expect_what_the_cpu_gives(*group, gpu);
  });
}

TEST_F(SeveralGpus, TrainingIsThatOfOneProcess) {
  on_gpus(2, [](const auto& group, at::Device gpu) {
    for (const bool views : {true, false})
      for (const bool is_static : {true, false}) {
        DistributedDataParallelOptions options;
        options.gradient_as_bucket_view = views;
        options.static_graph = is_static;
        expect_training_of_one_process(group, gpu, options);
      }
    for (const auto dtype : {at::kHalf, at::kBFloat16}) expect_mean_of_gradients(group, gpu, dtype);
    expect_mean_of_sparse_gradients(group, gpu);
  });
}

TEST_F(SeveralGpus, SubGroupsWork) {
  on_gpus(2, [](const auto& group, at::Device gpu) {
    const auto both = group->new_group({0, 1}), first = group->new_group({0});
    expect_what_the_cpu_gives(*both, gpu);
    EXPECT_EQ(first != nullptr, group->rank() == 0);
    auto tensor = torch::ones({1}, gpu);
    group->all_reduce(tensor);
    EXPECT_EQ(tensor.item<float>(), 2);
  });
}

TEST_F(SeveralGpus, WaitDoesNotWaitOnTheHost) {
  on_gpus(2, [](const auto& group, at::Device gpu) {
    auto tensor = torch::ones({1000}, gpu);
    group->all_reduce(tensor);
    at::cuda::device_synchronize();
    at::cuda::CUDAEvent end_of_kernel;
    at::cuda::sleep(kSecondOfCycles);
    end_of_kernel.record();
    group->all_reduce_async(tensor).wait();
    EXPECT_FALSE(end_of_kernel.query());
    EXPECT_EQ(tensor.sum().template item<float>(), 4000);
  });
}

TEST_F(SeveralGpus, EachRankUsesItsOwnGpuAlone) {
  on_gpus(2, [](const auto& group, at::Device gpu) {
    expect_training_of_one_process(group, gpu, {});
    for (at::DeviceIndex other = 0; other < c10::cuda::device_count(); ++other)
      EXPECT_EQ(c10::cuda::hasPrimaryContext(other), other == gpu.index()) << "GPU " << static_cast<int>(other);
  });
}

// The text of the error that ends a rank's calls, one after another.
std::string end_of_calls(ProcessGroup& group, at::Device gpu) {
  return error_of<CommError>([&] {
    for (;;) {
      auto tensor = torch::ones({1 << 20}, gpu);
      group.all_reduce(tensor);
      at::cuda::getCurrentCUDAStream().synchronize();
    }
  });
}

TEST_F(SeveralGpus, AKilledRankIsNamedByTheOther) {
  const auto on_rank = [](const Environment& environment) {
    const auto group = init_process_group(nccl_options(environment));
    auto tensor = torch::ones({1}, group->device());
    group->all_reduce(tensor);
    at::cuda::device_synchronize();
    if (environment.rank == 1) ::raise(SIGKILL);
    const auto text = end_of_calls(*group, group->device());
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  };
  const auto outcomes = observe_ranks(2, on_rank, {.limit = std::chrono::seconds(60)});
  EXPECT_TRUE(outcomes[0].succeeded()) << outcomes[0].ending() << '\n' << outcomes[0].output;
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
}

// Rank 1 comes to the call on the host, but its GPU has too much to do before it.
TEST_F(SeveralGpus, AHangOnTheDeviceIsEndedByTheTimeout) {
  const auto on_rank = [](const Environment& environment) {
    auto options = nccl_options(environment);
    options.timeout = std::chrono::seconds(3);
    const auto group = init_process_group(options);
    auto tensor = torch::ones({1}, group->device());
    group->all_reduce(tensor);
    at::cuda::device_synchronize();
    if (environment.rank == 1)
      for (int i = 0; i < 20; ++i) at::cuda::sleep(kSecondOfCycles);
    const auto text = end_of_calls(*group, group->device());
    EXPECT_NE(text, "no error");
  };
  expect_success(observe_ranks(2, on_rank, {.limit = std::chrono::seconds(60)}));
}

TEST_F(SeveralGpus, ARankThatDoesNotCallIsNamedAfterTheTimeout) {
  const Gate told;
  const auto on_rank = [&](const Environment& environment) {
    auto options = nccl_options(environment);
    options.timeout = std::chrono::seconds(3);
    const auto group = init_process_group(options);
    auto tensor = torch::ones({1}, group->device());
    group->all_reduce(tensor);
    if (environment.rank == 1) return told.pass();
    const auto text = end_of_calls(*group, group->device());
    told.open();
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  };
  expect_success(observe_ranks(2, on_rank, {.limit = std::chrono::seconds(60)}));
}

}  // namespace
}  // namespace ddp::testing
