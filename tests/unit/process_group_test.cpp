// A world of one, and what needs no other rank.
#include "ddp/process_group.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>

#include "comm/backend.hpp"

namespace ddp {
namespace {

std::shared_ptr<ProcessGroup> alone(ProcessGroupOptions options = {}) {
  options.environment = Environment{};
  return init_process_group(options);
}

std::ptrdiff_t entries(const char* directory) {
  return std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator());
}

template <class Kind>
void expect_error(const ProcessGroupOptions& options, const std::string& text) {
  try {
    init_process_group(options);
    ADD_FAILURE() << "no exception, expected: " << text;
  } catch (const Kind& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what() << "\nhas not: " << text;
  }
}

TEST(ProcessGroup, AloneOpensNoSocketAndStartsNoThread) {
  const auto threads = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");
  const auto group = alone();
  auto tensor = at::ones({100});
  group->all_reduce(tensor);
  group->barrier();
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(group->backend(), "none");
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->rank(), 0);
}

TEST(ProcessGroup, AloneEveryCollectiveReturnsTheInput) {
  const auto group = alone();
  const auto input = at::randn({3, 4});
  for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    auto tensor = input.clone();
    const auto* memory = tensor.data_ptr();
    group->all_reduce(tensor, op);
    EXPECT_TRUE(at::equal(tensor, input));
    EXPECT_EQ(tensor.data_ptr(), memory);
  }
  auto tensor = input.clone();
  group->broadcast(tensor);
  EXPECT_TRUE(at::equal(tensor, input));
  const auto all = group->all_gather(input);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_TRUE(at::equal(all[0], input));
  EXPECT_EQ(group->broadcast_bytes("abc"), "abc");
  EXPECT_EQ(group->all_gather_bytes("abc"), std::vector<std::string>{"abc"});
}

TEST(ProcessGroup, AloneRefusesWhatSeveralRanksWouldRefuse) {
  const auto group = alone();
  auto integers = at::ones({3}, at::kInt);
  EXPECT_THROW(group->all_reduce(integers, ReduceOp::avg), std::logic_error);
  EXPECT_THROW(group->broadcast(integers, 1), std::logic_error);
  group->shutdown();
  EXPECT_THROW(group->barrier(), std::logic_error);
}

TEST(ProcessGroup, AGroupThatHasFailedSaysSoAtEveryCall) {
  const auto group = alone();
  group->check();
  group->fail("out of disk");
  for (int i = 0; i < 2; ++i) {
    try {
      group->barrier();
      ADD_FAILURE() << "no exception";
    } catch (const CommError& error) {
      EXPECT_STREQ(error.what(), "rank 0 of 1: barrier #1: this rank has failed: out of disk");
    }
  }
  EXPECT_THROW(group->check(), CommError);
}

TEST(ProcessGroup, BackendsThatAreNotThereAreNamed) {
  ProcessGroupOptions options;
  options.environment = Environment{};
  options.backend = "nccl";
  expect_error<ConfigError>(
      options, comm::kHasNccl
                   ? "this process sees no CUDA device, and is to work on one"
                   : "backend \"nccl\" is not in this build; configure it with DDP_WITH_NCCL, or use \"auto\"");
  options.backend = "mpi";
  expect_error<ConfigError>(options, "unknown backend \"mpi\"; known are \"auto\", \"gloo\", \"nccl\" and \"shm\"");
}

TEST(ProcessGroup, AnEnvironmentThatContradictsItselfIsAConfigError) {
  ProcessGroupOptions options;
  options.environment = Environment{};
  options.environment->world_size = 2;
  expect_error<ConfigError>(options, "set MASTER_ADDR and MASTER_PORT");
  options.environment->rank = 2;
  expect_error<ConfigError>(options, "rank 2 is not below the world size 2");
  options.environment->world_size = 0;
  expect_error<ConfigError>(options, "the world size is 0");
}

TEST(ProcessGroup, TheTimeoutComesFromTheOptionsElseFromTheVariableElseIsHalfAnHour) {
  EXPECT_EQ(alone()->timeout(), std::chrono::minutes(30));
  ::setenv("DDP_TIMEOUT", "2.5", 1);
  EXPECT_EQ(alone()->timeout(), std::chrono::milliseconds(2500));
  ProcessGroupOptions options;
  options.timeout = std::chrono::seconds(7);
  EXPECT_EQ(alone(options)->timeout(), std::chrono::seconds(7));
  options = {};
  options.environment = Environment{};
  for (const char* wrong : {"soon", "-1", "0", "5 s", "nan", "1e300"}) {
    ::setenv("DDP_TIMEOUT", wrong, 1);
    expect_error<ConfigError>(options, std::string("DDP_TIMEOUT=") + wrong);
  }
  ::unsetenv("DDP_TIMEOUT");
}

}  // namespace
}  // namespace ddp
