// A world of one on a GPU: no communicator, and the same interface.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpu/collectives.hpp"
#include "gpu/gpus.hpp"
#include "gpu/training_on.hpp"

namespace ddp::testing {
namespace {

void on_world_of_one(const OnRank& body) {
  on_one_gpu([&](at::Device gpu) {
    ProcessGroupOptions options;
    options.environment = Environment{};
    const auto group = init_process_group(options);
    ASSERT_EQ(group->device(), gpu) << "\"auto\" takes the GPU";
    EXPECT_EQ(group->backend(), "none");
    body(group, gpu);
  });
}

TEST(WorldOfOneOnAGpu, LeavesTensorsAsTheyAre) {
  on_world_of_one([](const auto& group, at::Device gpu) {
    for (const auto& [name, call] : all_collectives()) {
      if (name == "messages") continue;  // to oneself there are none
      for (const auto& tensor : call(*group, gpu)) EXPECT_EQ(tensor.device(), gpu) << name;
    }
    auto mean = values_of_rank(*group, gpu);
    group->all_reduce(mean, ReduceOp::avg);
    EXPECT_TRUE(torch::equal(mean, values_of_rank(*group, gpu)));
  });
}

TEST(WorldOfOneOnAGpu, AllocatesZeroedMemoryOnIt) {
  on_world_of_one([](const auto& group, at::Device gpu) {
    const auto memory = group->allocate(1 << 20);
    EXPECT_EQ(memory.device(), gpu);
    EXPECT_EQ(memory.to(torch::kLong).sum().template item<std::int64_t>(), 0);
  });
}

TEST(WorldOfOneOnAGpu, TrainsAsTheModuleAlone) {
  on_world_of_one([](const auto& group, at::Device gpu) { expect_training_of_one_process(group, gpu, {}); });
}

}  // namespace
}  // namespace ddp::testing
