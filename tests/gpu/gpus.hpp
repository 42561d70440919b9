#pragma once
/// gpus.hpp: tests on GPUs, each in processes of its own, since a process that has used CUDA cannot fork any that do.
///
/// The process of the tests itself never touches CUDA: what does runs in children.

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"

namespace ddp::testing {

inline const at::Device kFirstGpu{at::kCUDA, 0};

/// How many GPUs a child of this process sees; asked once.
int visible_gpus();

using OnGpu = std::function<void(at::Device gpu)>;
using OnRank = std::function<void(const std::shared_ptr<ProcessGroup>& group, at::Device gpu)>;

/// Runs `body` in a child whose current device is the first GPU. What fails there fails the test.
void on_one_gpu(const OnGpu& body);

/// Runs `body` on ranks that all work on the first GPU, over a backend of the CPU.
void on_shared_gpu(int world, const std::string& backend, const OnRank& body);

/// Runs `body` on as many ranks, each with a GPU of its own, over NCCL.
void on_gpus(int world, const OnRank& body);

/// Options of a group that such a rank makes itself.
ProcessGroupOptions nccl_options(const Environment& environment);

/// For tests of which every rank is to succeed.
void expect_success(const std::vector<Outcome>& outcomes);

/// A parameter of a test: over which backend of the CPU the ranks of one GPU talk.
class OnSharedGpu : public ::testing::TestWithParam<const char*> {};
inline std::string name_of_backend(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

/// Tests that want two GPUs are not run where there is one; the summary lists them.
class SeveralGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (visible_gpus() < 2) GTEST_SKIP() << "not run: it wants 2 GPUs, and this process sees " << visible_gpus();
  }
};

}  // namespace ddp::testing
