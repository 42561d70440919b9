// Room for NCCL in /dev/shm.
#include "comm/shm_room.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "support/temp_folder.hpp"

namespace ddp::comm {
namespace {

// In a mount namespace of its own, for which the test needs the right.
std::string room_of(const char* size, int ranks) {
  const testing::TempFolder folder;
  const auto answer = folder.path() / "answer", inner = folder.path() / "shm";
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(1);
    ::mkdir(inner.c_str(), 0700);
    if (::mount("tmpfs", inner.c_str(), "tmpfs", 0, size) != 0) ::_exit(2);
    std::ofstream(answer) << too_little_room(inner.c_str(), ranks);
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::ifstream file(answer);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ShmRoom, OfAContainersDefaultIsTooLittleForFourRanks) {
  const auto text = room_of("size=64m", 4);
  EXPECT_NE(text.find("/shm has 64 MiB free, and NCCL may take 74 MiB of it for 4 ranks on this host"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("--shm-size=1g"), std::string::npos) << text;
}

TEST(ShmRoom, IsEnoughForTwoRanksForOneAndInALargerOne) {
  EXPECT_EQ(room_of("size=64m", 2), "");
  EXPECT_EQ(room_of("size=1m", 1), "");
  EXPECT_EQ(room_of("size=128m", 4), "");
}

TEST(ShmRoom, ThatNobodyCanTellOfIsNoReasonToWarn) { EXPECT_EQ(too_little_room("/no/such/folder", 4), ""); }

}  // namespace
}  // namespace ddp::comm
