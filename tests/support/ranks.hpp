#pragma once
/// ranks.hpp: several ranks in one test, each a forked child with its own process group.
///
/// The parent binds the store's socket before it forks, so no port is fixed and no rank comes too
/// early. The parent must not use torch's threads before: a forked child would miss them.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/process_group.hpp"

namespace ddp::testing {

struct RanksOptions {
  std::chrono::milliseconds limit{30000};          ///< all children are killed after it
  std::chrono::milliseconds group_timeout{20000};  ///< of the group that the body is given
  std::string backend = "auto";
  std::string store_file = {};  ///< not empty: meet over this file instead of a socket
  /// Children end by exit(), so that atexit handlers and static destructors run. Only for tests
  /// about leaving: without it they end by _exit().
  bool run_exit_handlers = false;
};

/// How a child ended.
struct Outcome {
  int rank = -1;
  int exit_code = -1;  ///< -1 when a signal ended it
  int signal = 0;
  bool out_of_time = false;  ///< killed by the harness
  std::string output;        ///< standard output and standard error, in the order written
  std::chrono::steady_clock::time_point ended;

  bool succeeded() const { return exit_code == 0; }
  /// "exit code 1", "signal 9 (Killed)", "killed by the harness after 30000 ms".
  std::string ending() const;
};

/// Runs `body` on `world` ranks, each with a group, and reports what fails on any of them in the
/// parent, prefixed with its rank: gtest failures, exceptions, signals, exit codes, the limit.
/// An exception is published, so that the other ranks end as well.
void run_ranks(int world, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body,
               const RanksOptions& options = {});

/// Runs `body` on `world` children that have no group yet and judges nothing: the caller looks at
/// the outcomes. A gtest failure gives exit code 90, an exception 91 and its text in the output.
std::vector<Outcome> observe_ranks(int world, const std::function<void(const Environment&)>& body,
                                   const RanksOptions& options = {});

/// Replaces this child by a program that finds `environment` in torchrun's variables.
[[noreturn]] void become_program(const Environment& environment, const std::string& path,
                                 const std::vector<std::string>& arguments = {});

/// Collective. Compares shape, dtype and bytes over the ranks; the text names the first that differs.
::testing::AssertionResult same_on_all_ranks(ProcessGroup& group, const at::Tensor& tensor);

/// Lets children wait for each other without sleeping: open() lets as many pass() calls return.
/// Make it before the ranks are forked.
class Gate {
 public:
  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open(int passes = 1) const;
  void pass() const;

 private:
  int descriptors_[2];
};

}  // namespace ddp::testing
