#pragma once
/// recipes_site.hpp: where the recipes of docs/multi_node.md are carried out. MULTI_NODE is the document, DDPRUN the
/// launcher; TORCHRUN and MPIRUN are there where these programs are.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "process/launched.hpp"
#include "support/machines.hpp"
#include "support/temp_folder.hpp"

namespace ddp::test {

using Replacements = std::map<std::string, std::string>;
using Variables = std::map<std::string, std::string>;

/// Every command of the document's blocks for a shell; one that goes on after a backslash is one.
inline std::set<std::string> documented_commands() {
  std::istringstream document(testing::contents(MULTI_NODE));
  std::set<std::string> found;
  std::string command;
  bool is_inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("```")) {
      is_inside = line == "```sh";
    } else if (is_inside && !line.starts_with("#")) {
      command += line;
      if (line.ends_with('\\'))
        command += '\n';
      else
        found.insert(std::exchange(command, {}));
    }
  }
  return found;
}

/// Two machines, node-a and node-b, joined by a cable, and a folder that both see, in which programs have the
/// document's names.
class Site {
 public:
  /// `train`: what a shell does for the document's `train`.
  explicit Site(const std::string& train) {
    add_program("train", train);
    std::filesystem::create_symlink(DDPRUN, folder_ / "ddprun");
#ifdef TORCHRUN
    std::filesystem::create_symlink(TORCHRUN, folder_ / "torchrun");
#endif
#ifdef MPIRUN
    std::filesystem::create_symlink(MPIRUN, folder_ / "mpirun");
#endif
    testing::join_by_cable(a, b);
  }
  ~Site() {
    for (const auto& job : jobs_) {
      if (job.pid() > 0) ::kill(-job.pid(), SIGKILL);
    }
  }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  /// A shell's script that is found by its name on both machines.
  void add_program(const std::string& name, const std::string& script) const {
    testing::overwrite(folder_ / name, "#!/bin/sh\n" + script + "\n");
    ::chmod((folder_ / name).c_str(), 0755);
  }

  /// Carries out a command of the document, with what is replaced in it, in the folder.
  Launched& start(const testing::Machine& machine, const std::string& command, const Replacements& replacements = {},
                  const Variables& variables = {}) {
    EXPECT_TRUE(documented_commands().contains(command)) << "not in the document: " << command;
    const bool is_one = command.find_first_of("&;") == std::string::npos;
    const auto line = (is_one ? "exec " : "") + replaced(command, replacements);
    return jobs_.emplace_back(std::vector<std::string>{"/bin/sh", "-c", line}, [&] {
      machine.enter();
      if (::chdir(folder_.path().c_str()) != 0) ::_exit(98);
      ::setenv("PATH", (folder_.path().string() + ":" + path()).c_str(), 1);
      ::setenv("TMPDIR", folder_.path().c_str(), 1);  // launchers leave files there
      ::setenv("OMP_NUM_THREADS", "1", 1);
      ::setenv("DDP_TIMEOUT", "40", 1);  // for what a test that has failed leaves
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    });
  }

  /// To its end, which must be a good one: what it has said.
  std::string run(const testing::Machine& machine, const std::string& command, const Replacements& replacements = {},
                  const Variables& variables = {}) {
    return finished(start(machine, command, replacements, variables));
  }
  static std::string finished(Launched& job) {
    EXPECT_EQ(job.finish(kLimit), 0) << job.text();
    return job.text();
  }

  const testing::TempFolder& folder() const { return folder_; }

 private:
  static constexpr std::chrono::seconds kLimit{40};

  static std::string path() {
    const auto* const value = std::getenv("PATH");
    return value == nullptr ? "/usr/bin:/bin" : value;
  }
  static std::string replaced(std::string command, const Replacements& replacements) {
    for (const auto& [from, to] : replacements) {
      const auto at = command.find(from);
      if (at == std::string::npos) throw std::logic_error(from + " is not in " + command);
      command.replace(at, from.size(), to);
    }
    return command;
  }
  std::filesystem::path hosts() const {
    testing::overwrite(folder_ / "hosts",
                       "127.0.0.1 localhost\n10.8.0.1 node-a n1 train-master-0\n10.8.0.2 node-b n2 train-worker-0\n");
    return folder_ / "hosts";
  }

  testing::TempFolder folder_;
  std::deque<Launched> jobs_;  // references stay

 public:
  const testing::Machine a{"node-a", hosts()}, b{"node-b", hosts()};
};

}  // namespace ddp::test
