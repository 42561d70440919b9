// Which backend and which device a rank gets. Nothing here needs a GPU.
#include "comm/backend.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/shm_meeting.hpp"
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

class Backend : public ::testing::Test {
 protected:
  ~Backend() override { ::unsetenv("DDP_BACKEND"); }
};

TEST_F(Backend, IsTheOneThatIsNamed) {
  for (const auto* name : {"auto", "gloo", "shm"}) EXPECT_EQ(choose_backend(name, {}), name);
}

// As the moves' table of parts in an entry has no room for more; each rank knows it by itself.
TEST_F(Backend, OfVeryManyRanksIsNotSharedMemory) {
  BackendSetup setup;
  setup.environment.world_size = 257;
  const auto verdict = share_memory(setup);
  EXPECT_EQ(verdict.memory, nullptr);
  EXPECT_EQ(verdict.why_not, "the group has more than 256 ranks");
}

TEST_F(Backend, OfAutoIsTheVariablesWhichAnotherNameOverrules) {
  ::setenv("DDP_BACKEND", "gloo", 1);
  EXPECT_EQ(choose_backend("auto", {}), "gloo");
  EXPECT_EQ(choose_backend("shm", {}), "shm");
  ::setenv("DDP_BACKEND", "", 1);
  EXPECT_EQ(choose_backend("auto", {}), "auto");
  ::setenv("DDP_BACKEND", "mpi", 1);
  EXPECT_THROW(choose_backend("auto", {}), ConfigError);
}

TEST_F(Backend, NcclIsKnownInBuildsThatHaveItAndAConfigErrorInOthers) {
  if (kHasNccl)
    EXPECT_EQ(choose_backend("nccl", {}), "nccl");
  else
    EXPECT_THROW(choose_backend("nccl", {}), ConfigError);
}

TEST_F(Backend, OverGlooARankWorksOnTheCpu) {
  EXPECT_EQ(take_device("gloo", with_local_rank(3)), at::Device(at::kCPU));
}

TEST_F(Backend, ARankTakesTheCudaDeviceOfItsLocalRank) {
  EXPECT_EQ(cuda_device_of(with_local_rank(0), 1), at::Device(at::kCUDA, 0));
  EXPECT_EQ(cuda_device_of(with_local_rank(1), 4), at::Device(at::kCUDA, 1));
  EXPECT_EQ(cuda_device_of(with_local_rank(3), 4), at::Device(at::kCUDA, 3));
}

TEST_F(Backend, ALocalRankWithoutADeviceIsAConfigErrorWithBothNumbers) {
  EXPECT_EQ(
      refusal(4, 4),
      "rank 5 of 8: init_process_group: local rank 4 has no CUDA device: this process sees 4; start one process a "
      "device, or set LOCAL_RANK=0 where each process sees its own alone");
  EXPECT_NE(refusal(1, 1).find("local rank 1 has no CUDA device: this process sees 1"), std::string::npos);
}

TEST_F(Backend, NoDeviceAtAllIsAConfigErrorThatNamesTheBackendsOfTheCpu) {
  EXPECT_EQ(refusal(0, 0),
            "rank 5 of 8: init_process_group: backend \"nccl\" needs a GPU, and this process sees no CUDA device; see "
            "what nvidia-smi shows and whether CUDA_VISIBLE_DEVICES hides it; on the CPU, use \"auto\" or \"gloo\"");
}

}  // namespace
}  // namespace ddp::comm
