// Which backend and which device a rank gets. Nothing here needs a GPU.
#include "comm/backend.hpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/device_backend.hpp"
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

std::string refusal(int local_rank, int visible, const std::optional<at::Device>& asked = std::nullopt) {
  try {
    visible_device(with_local_rank(local_rank), at::kCUDA, visible, asked);
    return "no exception";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

bool is_built_with_cuda() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(at::kCUDA)].load() != nullptr;
}

at::Device device_of(int local_rank, int visible, const std::optional<at::Device>& asked = std::nullopt) {
  return visible_device(with_local_rank(local_rank), at::kCUDA, visible, asked);
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
  const auto choice = choose_device("gloo", with_local_rank(3), std::nullopt);
  EXPECT_EQ(choice.device, at::Device(at::kCPU));
  EXPECT_EQ(choice.engine, nullptr);
  EXPECT_EQ(choice.host, "gloo");
}

TEST_F(Backend, ARankTakesTheDeviceOfItsLocalRank) {
  EXPECT_EQ(device_of(0, 1), at::Device(at::kCUDA, 0));
  EXPECT_EQ(device_of(1, 4), at::Device(at::kCUDA, 1));
  EXPECT_EQ(device_of(3, 4), at::Device(at::kCUDA, 3));
}

TEST_F(Backend, ARankThatSeesOneDeviceTakesIt) {  // as where a launcher sets CUDA_VISIBLE_DEVICES for each process
  EXPECT_EQ(device_of(3, 1), at::Device(at::kCUDA, 0));
}

TEST_F(Backend, ARankTakesTheDeviceThatItAsksFor) {
  EXPECT_EQ(device_of(0, 4, at::Device(at::kCUDA, 2)), at::Device(at::kCUDA, 2));
  EXPECT_EQ(device_of(3, 4, at::Device(at::kCUDA)), at::Device(at::kCUDA, 3));  // any: that of its local rank
  EXPECT_NE(refusal(0, 4, at::Device(at::kCUDA, 4)).find("there is no CUDA device 4: this process sees 4"),
            std::string::npos);
}

TEST_F(Backend, ALocalRankWithoutADeviceIsAConfigErrorWithBothNumbers) {
  EXPECT_EQ(
      refusal(4, 4),
      "rank 5 of 8: init_process_group: local rank 4 has no CUDA device: this process sees 4; start one process a "
      "device; several on one work with backend \"gloo\" or \"shm\" and ProcessGroupOptions::device");
}

TEST_F(Backend, NoDeviceAtAllIsAConfigErrorThatSaysWhy) {
  const std::string begin =
      "rank 5 of 8: init_process_group: this process sees no CUDA device, and is to work on one; ";
  const std::string reason = is_built_with_cuda()
                                 ? "see what nvidia-smi shows and whether CUDA_VISIBLE_DEVICES hides it; "
                                 : "this LibTorch is built without CUDA; ";
  EXPECT_EQ(refusal(0, 0), begin + reason + "for the CPU, use \"gloo\" or \"shm\"");
  EXPECT_EQ(refusal(0, 0, at::Device(at::kCUDA, 0)),
            begin + reason + "for the CPU, leave out ProcessGroupOptions::device");
}

}  // namespace
}  // namespace ddp::comm
