#pragma once
/// shared_memory.hpp: what the tests of the shared-memory backend have in common.

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"
#include "support/shared.hpp"

namespace ddp::testing {

using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

inline Group join(const Environment& environment, std::chrono::milliseconds timeout = std::chrono::minutes(5),
                  const std::string& backend = "shm") {
  ::setenv("DDP_LOG_LEVEL", "warn", 1);
  ::unsetenv("DDP_BACKEND");  // "auto" is to find out itself
  ProcessGroupOptions options;
  options.environment = environment;
  options.timeout = timeout;
  options.backend = backend;
  return init_process_group(options);
}

inline void expect_success(const std::vector<Outcome>& outcomes, int but_for = -1) {
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.succeeded() || outcome.rank == but_for)
        << "rank " << outcome.rank << ": " << outcome.ending() << '\n'
        << outcome.output;
}

/// The lines of a process's /proc/<pid>/maps that are about the backend's memory.
inline std::vector<std::string> mapped_memory(const std::filesystem::path& process = "/proc/self") {
  std::vector<std::string> lines;
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:ddp") != std::string::npos) lines.push_back(line);
  return lines;
}

}  // namespace ddp::testing
