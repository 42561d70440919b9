#pragma once
/// dump_fixture.hpp: ranks whose dumps go to a folder of the test's.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddp/process_group.hpp"
#include "support/python.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"

namespace ddp::testing {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

inline Group join(const Environment& environment, std::chrono::milliseconds timeout = 30s) {
  ProcessGroupOptions options;
  options.environment = environment;
  options.timeout = timeout;
  return init_process_group(options);
}

/// Of the process's first three calls, labelled "loss", in steps 0 to 2.
inline void make_three_steps(ProcessGroup& group) {
  for (int step = 0; step < 3; ++step) {
    group.mark_step(step);
    auto tensor = at::ones({8, 8});
    group.all_reduce(tensor, ReduceOp::sum, {.label = "loss"});
  }
  group.mark_step(3);
}

class Dumps : public ::testing::Test {
 protected:
  Dumps() {
    ::setenv("DDP_DUMP_DIR", folder_.path().c_str(), 1);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
  }
  ~Dumps() override { ::unsetenv("DDP_DUMP_DIR"); }

  const TempFolder& folder() const { return folder_; }
  /// The dump of a rank; fails the test where it is not there alone.
  std::string file_of(int rank) const {
    std::vector<std::string> found;
    const auto begin = "ddp_rank" + std::to_string(rank) + '_';
    for (const auto& name : folder_.files())
      if (name.starts_with(begin) && name.ends_with(".json")) found.push_back(folder_ / name);
    if (found.size() == 1) return found[0];
    ADD_FAILURE() << found.size() << " dumps of rank " << rank;
    return {};
  }
  /// What Python makes of it.
  std::string in_dump_of(int rank, const std::string& expression) const { return of_json(file_of(rank), expression); }

 private:
  const TempFolder folder_;
};

}  // namespace ddp::testing
