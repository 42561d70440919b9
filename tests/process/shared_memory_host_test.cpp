// Shared memory and what a host is: ranks that cannot reach each other's memory, and what is left on the host. Needs
// the right to make namespaces.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>

#include "process/shared_memory.hpp"
#include "support/networks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

/// A host of its own, as far as networks and files for a while go.
void in_own_host(const std::function<void()>& body) {
  expect_success(observe_ranks(1, [&](const Environment&) {
    enter_new_network();
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      throw std::runtime_error("no mount namespace");
    for (const auto* folder : {"/tmp", "/dev/shm"})
      if (::mount("tmpfs", folder, "tmpfs", 0, nullptr) != 0) throw std::runtime_error(folder);
    body();
  }));
}

using Inode = std::array<char, 32>;

// "/memfd:ddp" and its inode: 7f..-7f.. rw-s 00000000 00:01 1234   /memfd:ddp (deleted)
std::string inode_in(const std::string& line) {
  std::istringstream stream(line);
  std::string word;
  for (int i = 0; i < 5; ++i) stream >> word;
  return word;
}

bool maps(const std::filesystem::path& process, const std::string& inode) {
  const auto lines = mapped_memory(process);
  return std::any_of(lines.begin(), lines.end(), [&](const auto& line) { return inode_in(line) == inode; });
}

bool anybody_maps(const std::string& inode) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos && maps(entry.path(), inode)) return true;
  }
  return false;
}

// Two ranks over shared memory; rank 1 is killed while both reduce, unless `victim` is none.
std::vector<Outcome> reduce_until_killed(int victim, const Shared<Inode>& inode) {
  return observe_ranks(2, [&](const Environment& environment) {
    const auto group = join(at_address(environment, "127.0.0.1"));
    auto tensor = group->allocate(1 << 20).fill_(1);
    group->all_reduce(tensor);
    EXPECT_TRUE(tensor.eq(2).all().item<bool>());
    const auto own = inode_in(mapped_memory().at(0));
    if (group->rank() == 0) std::copy(own.begin(), own.end(), inode->begin());
    EXPECT_TRUE(anybody_maps(own));
    group->barrier();
    if (victim < 0) return group->shutdown();
    if (group->rank() == victim) ::kill(::getpid(), SIGKILL);
    EXPECT_THROW(
        {
          for (;;) group->all_reduce(tensor, ReduceOp::max);
        },
        PeerLostError);
  });
}

TEST(SharedMemoryHost, KeepsNothingOfAKilledRunAndANewOneStartsAtOnce) {
  in_own_host([] {
    for (const int victim : {1, 0}) {
      const Shared<Inode> inode;
      expect_success(reduce_until_killed(victim, inode), victim);
      EXPECT_NE(std::string(inode->data()), "");
      EXPECT_FALSE(anybody_maps(inode->data()));
      EXPECT_TRUE(std::filesystem::is_empty("/tmp"));
      EXPECT_TRUE(std::filesystem::is_empty("/dev/shm"));
      const auto start = Clock::now();
      expect_success(reduce_until_killed(-1, inode));
      EXPECT_LT(Clock::now() - start, 2s);
    }
  });
}

TEST(SharedMemoryHost, InAnotherNetworkIsAnotherHost) {
  expect_success(on_two_networks([](const Environment& environment) {
    const auto group = join(environment, 15s, "auto");
    EXPECT_EQ(group->backend(), "gloo");
    auto tensor = at::ones({1000});
    group->all_reduce(tensor);
    EXPECT_TRUE(tensor.eq(2).all().item<bool>());
    EXPECT_TRUE(mapped_memory().empty());
    group->shutdown();
  }));
}

TEST(SharedMemoryHost, InAnotherNetworkIsAConfigErrorWhereNothingElseIsWanted) {
  expect_success(on_two_networks([](const Environment& environment) {
    try {
      static_cast<void>(join(environment, 15s));
      ADD_FAILURE() << "no exception";
    } catch (const ConfigError& error) {
      EXPECT_TRUE(contains(error.what(), "rank 1: rank 0's memory is not on this host"));
    }
  }));
}

}  // namespace
}  // namespace ddp::testing
