#include "gpu/gpus.hpp"

#include <c10/cuda/CUDAFunctions.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

namespace ddp::testing {
namespace {

// A GPU takes seconds to be there, and NCCL some more.
const RanksOptions kPatient{.limit = std::chrono::seconds(60)};

int ask_a_child() {
  const pid_t child = ::fork();
  if (child < 0) return 0;
  if (child == 0) ::_exit(c10::cuda::device_count());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

void run_with_group(const ProcessGroupOptions& options, const OnRank& body) {
  const auto group = init_process_group(options);
  try {
    body(group, group->device());
  } catch (const std::exception& error) {
    group->fail(error.what());
    throw;
  }
  group->shutdown();
}

ProcessGroupOptions options_of(const std::string& backend, const Environment& environment) {
  ProcessGroupOptions options;
  options.backend = backend;
  options.environment = environment;
  options.timeout = std::chrono::seconds(30);
  return options;
}

}  // namespace

int visible_gpus() {
  static const int count = ask_a_child();
  return count;
}

void expect_success(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << " ended by " << outcome.ending() << '\n'
                                     << outcome.output;
}

void on_one_gpu(const OnGpu& body) {
  const auto in_child = [&](const Environment&) {
    c10::cuda::set_device(kFirstGpu.index());
    body(kFirstGpu);
  };
  expect_success(observe_ranks(1, in_child, kPatient));
}

void on_shared_gpu(int world, const std::string& backend, const OnRank& body) {
  const auto on_rank = [&](const Environment& environment) {
    auto options = options_of(backend, environment);
    options.device = kFirstGpu;
    run_with_group(options, body);
  };
  expect_success(observe_ranks(world, on_rank, kPatient));
}

ProcessGroupOptions nccl_options(const Environment& environment) { return options_of("nccl", environment); }

void on_gpus(int world, const OnRank& body) {
  const auto on_rank = [&](const Environment& environment) { run_with_group(nccl_options(environment), body); };
  expect_success(observe_ranks(world, on_rank, kPatient));
}

}  // namespace ddp::testing
