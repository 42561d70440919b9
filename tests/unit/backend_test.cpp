// Which backend and which device a rank gets. Nothing here needs a GPU.
#include "comm/backend.hpp"

#include <gtest/gtest.h>

#include "ddp/error.hpp"

namespace ddp::comm {
namespace {

Environment with_local_rank(int local_rank) {
  Environment environment;
  environment.rank = 5;
  environment.world_size = 8;
  environment.local_rank = local_rank;
  return environment;
}

std::string refusal(int local_rank, int visible) {
  try {
    cuda_device_of(with_local_rank(local_rank), visible);
    return "no exception";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Backend, AutoIsGlooOnEveryMachine) {
  EXPECT_EQ(choose_backend("auto", {}), "gloo");
  EXPECT_EQ(choose_backend("gloo", {}), "gloo");
}

TEST(Backend, NcclIsKnownInBuildsThatHaveItAndAConfigErrorInOthers) {
  if (kHasNccl)
    EXPECT_EQ(choose_backend("nccl", {}), "nccl");
  else
    EXPECT_THROW(choose_backend("nccl", {}), ConfigError);
}

TEST(Backend, OverGlooARankWorksOnTheCpu) { EXPECT_EQ(take_device("gloo", with_local_rank(3)), at::Device(at::kCPU)); }

TEST(Backend, ARankTakesTheCudaDeviceOfItsLocalRank) {
  EXPECT_EQ(cuda_device_of(with_local_rank(0), 1), at::Device(at::kCUDA, 0));
  EXPECT_EQ(cuda_device_of(with_local_rank(1), 4), at::Device(at::kCUDA, 1));
  EXPECT_EQ(cuda_device_of(with_local_rank(3), 4), at::Device(at::kCUDA, 3));
}

TEST(Backend, ALocalRankWithoutADeviceIsAConfigErrorWithBothNumbers) {
  EXPECT_EQ(
      refusal(4, 4),
      "rank 5 of 8: init_process_group: local rank 4 has no CUDA device: this process sees 4; start one process a "
      "device, or set LOCAL_RANK=0 where each process sees its own alone");
  EXPECT_NE(refusal(1, 1).find("local rank 1 has no CUDA device: this process sees 1"), std::string::npos);
}

TEST(Backend, NoDeviceAtAllIsAConfigErrorThatNamesTheBackendsOfTheCpu) {
  EXPECT_EQ(refusal(0, 0),
            "rank 5 of 8: init_process_group: backend \"nccl\" needs a GPU, and this process sees no CUDA device; see "
            "what nvidia-smi shows and whether CUDA_VISIBLE_DEVICES hides it; on the CPU, use \"auto\" or \"gloo\"");
}

}  // namespace
}  // namespace ddp::comm
