// Two ranks on one GPU, whose tensors go through the host's memory: the logic of several ranks where one GPU is all.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpu/collectives.hpp"
#include "gpu/gpus.hpp"
#include "gpu/training_on.hpp"
#include "support/thrown.hpp"

namespace ddp::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Over, OnSharedGpu, ::testing::Values("gloo", "shm"), name_of_backend);

TEST_P(OnSharedGpu, CollectivesGiveWhatTheCpuGives) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    EXPECT_EQ(group->device(), gpu);
    expect_what_the_cpu_gives(*group, gpu);
  });
}

TEST_P(OnSharedGpu, LargeTensorsArriveWhole) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    constexpr std::int64_t kElements = (1 << 22) + 3;
    auto tensor = torch::arange(kElements, at::device(gpu).dtype(at::kDouble)) * (group->rank() + 1);
    group->all_reduce(tensor);
    EXPECT_TRUE(torch::equal(tensor, torch::arange(kElements, at::device(gpu).dtype(at::kDouble)) * 3));
  });
}

TEST_P(OnSharedGpu, TrainingIsThatOfOneProcess) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    for (const bool views : {true, false})
      for (const bool is_static : {true, false}) {
        DistributedDataParallelOptions options;
        options.gradient_as_bucket_view = views;
        options.static_graph = is_static;
        SCOPED_TRACE("views " + std::to_string(views) + ", static graph " + std::to_string(is_static));
        expect_training_of_one_process(group, gpu, options);
      }
  });
}

TEST_P(OnSharedGpu, HalfTypesAndSparseGradientsAreAveraged) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    for (const auto dtype : {at::kHalf, at::kBFloat16}) expect_mean_of_gradients(group, gpu, dtype);
    expect_mean_of_sparse_gradients(group, gpu);
  });
}

TEST_P(OnSharedGpu, InputsInTheHostsMemoryAreMovedWhereDeviceIdsNamesTheGpu) {
  on_shared_gpu(2, GetParam(), [](const auto& group, at::Device gpu) {
    Perceptron net;
    net->to(gpu);
    DistributedDataParallelOptions options;
    options.device_ids = {gpu.index()};
    DistributedDataParallel model(net, group, options);
    const auto output = model(torch::ones({2, 8}, torch::kDouble));
    EXPECT_EQ(output.device(), gpu);
    output.sum().backward();
  });
}

TEST_P(OnSharedGpu, SubGroupsWork) {
  on_shared_gpu(3, GetParam(), [](const auto& group, at::Device gpu) {
    const auto pair = group->new_group({0, 2});
    if (pair) expect_what_the_cpu_gives(*pair, gpu);
    group->barrier();
  });
}

TEST(SharedGpu, IsRefusedByNcclWithBothRanksAndTheWayOut) {
  const auto on_rank = [](const Environment& environment) {
    auto options = nccl_options(environment);
    options.device = kFirstGpu;
    const auto text = error_of<ConfigError>([&] { init_process_group(options); });
    for (const auto* part : {"two ranks have one device", "rank 0", "rank 1", "\"gloo\""})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  };
  expect_success(observe_ranks(2, on_rank, {.limit = std::chrono::seconds(60)}));
}

}  // namespace
}  // namespace ddp::testing
