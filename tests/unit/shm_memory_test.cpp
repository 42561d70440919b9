#include "comm/shm/memory.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "shm_child.hpp"
#include "shm_forbid.hpp"

namespace ddp::comm::shm {
namespace {

using testing::Child;
using testing::forbid;
using testing::kKeepSize;
using testing::Line;

constexpr std::uint64_t kRegion = 4 << 20;

std::shared_ptr<Mapping> new_mapping() { return std::make_shared<Mapping>(Mapping::create(1, 2, kRegion)); }

bool is_zero(const std::byte* memory, std::uint64_t bytes) {
  return std::all_of(memory, memory + bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

std::uint64_t backed_bytes(const Memory& memory) {
  struct stat status{};
  EXPECT_EQ(fstat(memory.mapping().file(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(Memory, LiesInTheRanksOwnRegion) {
  Memory memory(new_mapping(), 1);
  std::byte* const first = memory.allocate(100);
  std::byte* const second = memory.allocate(page_bytes() + 1);
  EXPECT_EQ(first, memory.mapping().region(1));
  EXPECT_EQ(second, first + page_bytes());
  EXPECT_EQ(memory.allocated_bytes(), 3 * page_bytes());
}

TEST(Memory, IsZeroAlsoWhenItIsUsedAgain) {
  Memory memory(new_mapping(), 0);
  std::byte* const first = memory.allocate(1 << 20);
  ASSERT_TRUE(is_zero(first, 1 << 20));
  std::memset(first, 7, 1 << 20);
  memory.free(first);
  std::byte* const again = memory.allocate(1 << 20);
  EXPECT_EQ(again, first);
  EXPECT_TRUE(is_zero(again, 1 << 20));
}

TEST(Memory, GoesBackToTheSystemWhenItIsFreed) {
  Memory memory(new_mapping(), 0);
  const auto before = backed_bytes(memory);
  std::byte* const kept = memory.allocate(1 << 20);
  std::byte* const freed = memory.allocate(2 << 20);
  std::memset(kept, 5, 1 << 20);
  EXPECT_GE(backed_bytes(memory), before + (3 << 20));
  memory.free(freed);
  EXPECT_LE(backed_bytes(memory), before + (1 << 20) + 16 * page_bytes());
  EXPECT_EQ(kept[(1 << 20) - 1], std::byte{5});
}

TEST(Memory, IsNullWhereTheRegionIsFull) {
  Memory memory(new_mapping(), 0);
  EXPECT_EQ(memory.allocate(kRegion + 1), nullptr);
  std::byte* const whole = memory.allocate(kRegion);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(memory.allocate(1), nullptr);
  memory.free(whole);
  EXPECT_NE(memory.allocate(1), nullptr);
}

TEST(Memory, KeepsNothingTakenThatCouldNotBeBacked) {
  Memory memory(new_mapping(), 0);
  Child child([&](Line& line) {
    forbid(SYS_fallocate, 1, kKeepSize, ENOSPC);
    EXPECT_THROW(memory.allocate(1), Unavailable);
    EXPECT_EQ(memory.allocated_bytes(), 0u);
    line.say("done");
  });
  EXPECT_EQ(child->hear(), "done");
  EXPECT_EQ(child.status(), 0);
}

TEST(Memory, TakesBackOnlyWhatItGave) {
  Memory mine(new_mapping(), 0);
  Memory other(new_mapping(), 0);
  std::byte* const memory = mine.allocate(2 * page_bytes());
  std::byte* const foreign = other.allocate(1);
  EXPECT_THROW(mine.free(memory + page_bytes()), std::logic_error);
  EXPECT_THROW(mine.free(foreign), std::logic_error);
  mine.free(nullptr);
  mine.free(memory);
  EXPECT_THROW(mine.free(memory), std::logic_error);
}

TEST(Memory, HasNoRegionForARankThatIsNotThere) {
  EXPECT_THROW(Memory(new_mapping(), 2), std::out_of_range);
  EXPECT_THROW(Memory(new_mapping(), -1), std::out_of_range);
}

TEST(Memory, ServesThreadsAtOnce) {
  Memory memory(new_mapping(), 0);
  std::atomic<int> faults{0};
  std::vector<std::thread> workers;
  for (int me = 1; me <= 3; ++me) {
    workers.emplace_back([&, me] {
      std::mt19937 random(static_cast<unsigned>(me));
      for (int round = 0; round < 60; ++round) {
        const std::uint64_t bytes = 1 + random() % 100000;
        std::byte* const mine = memory.allocate(bytes);
        if (mine == nullptr) continue;
        faults += !is_zero(mine, bytes);
        std::memset(mine, me, bytes);
        faults += !std::all_of(mine, mine + bytes, [me](std::byte byte) { return byte == std::byte(me); });
        memory.free(mine);
      }
    });
  }
  for (auto& worker : workers) worker.join();
  EXPECT_EQ(faults, 0);
  EXPECT_EQ(memory.allocated_bytes(), 0u);
}

}  // namespace
}  // namespace ddp::comm::shm
