// ddprun --inspect asks real jobs of ranks. DDPRUN and STUCK_PROGRAM are the paths of the programs.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/inspection_client.hpp"
#include "ddp/process_group.hpp"
#include "process/launched.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using test::Clock;
using test::Launched;
using Group = std::shared_ptr<ProcessGroup>;

struct Shown {
  int code = -1;
  std::string text;  // standard output and error

  std::string line_with(const std::string& word) const {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.find(word) != std::string::npos) return line;
    return "(no line with " + word + ")";
  }
};

Shown inspect(pid_t pid) {
  Launched ddprun({DDPRUN, "--inspect", std::to_string(pid)});
  const int code = ddprun.finish(8s);
  return {code, ddprun.text()};
}

/// Asks until `is_right`, 10 s at most.
Shown inspect_until(pid_t pid, const std::function<bool(const Shown&)>& is_right) {
  const auto limit = Clock::now() + 10s;
  auto shown = inspect(pid);
  while (!is_right(shown) && Clock::now() < limit) shown = inspect(pid);
  return shown;
}

/// Three ranks of STUCK_PROGRAM under ddprun, ranks 0 and 2 in their all_reduce.
class StuckJob {
 public:
  StuckJob() : launcher_({DDPRUN, "--nproc-per-node", "3", STUCK_PROGRAM}) {
    const auto& text = launcher_.read_until(" is ", 3);
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      const auto begin = "rank " + std::to_string(rank) + " is ";
      pids_[rank] = std::stoi(text.substr(text.find(begin) + begin.size()));
    }
    const auto all_wait = [](const Shown& shown) { return count(shown.text, "now in all_reduce #") == 2; };
    const auto shown = inspect_until(launcher(), all_wait);
    if (!all_wait(shown)) throw std::runtime_error("the ranks do not wait:\n" + shown.text);
  }
  pid_t launcher() const { return launcher_.pid(); }
  pid_t rank(std::size_t rank) const { return pids_[rank]; }

  void stop(std::size_t rank) const {
    ::kill(pids_[rank], SIGSTOP);
    const auto is_stopped = [&] {
      std::ifstream status("/proc/" + std::to_string(pids_[rank]) + "/status");
      for (std::string line; std::getline(status, line);)
        if (line.starts_with("State:")) return line.find('T') != std::string::npos;
      return false;
    };
    while (!is_stopped()) std::this_thread::yield();
  }

 private:
  Launched launcher_;
  std::array<pid_t, 3> pids_{};
};

std::string line_of(const StuckJob& job, std::size_t rank) {
  return "  rank " + std::to_string(rank) + " (process " + std::to_string(job.rank(rank)) + "): ";
}

void expect_waits_for_the_loss(const std::string& line) {
  expect_contains(line, {"last completed all_reduce #", "in step 2, now in all_reduce #", "\"loss\"", "in step 3"});
}

TEST(Inspect, ShowsWhatEveryRankOfAStuckJobDoes) {
  const StuckJob job;
  for (const auto pid : {job.launcher(), job.rank(0), job.rank(1), job.rank(2)}) {
    const auto shown = inspect(pid);
    EXPECT_EQ(shown.code, 0) << shown.text;
    EXPECT_EQ(count(shown.text, "\n"), 5) << shown.text;
    EXPECT_TRUE(contains(shown.text, "group of all 3 ranks, backend "));
    expect_waits_for_the_loss(shown.line_with(line_of(job, 0)));
    expect_waits_for_the_loss(shown.line_with(line_of(job, 2)));
    EXPECT_TRUE(contains(shown.line_with(line_of(job, 1)), "not in a collective"));
    const auto speaker = pid == job.launcher() ? std::string() : std::to_string(pid) + " on ";
    EXPECT_TRUE(contains(shown.text, " of 3, process " + speaker));
    EXPECT_TRUE(contains(shown.text, ", whose main thread sleeps")) << shown.text;
  }
}

TEST(Inspect, ForAStoppedRankAnotherOneAnswers) {
  const StuckJob job;
  job.stop(1);
  const auto shown = inspect(job.rank(1));
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_TRUE(contains(shown.text, "process " + std::to_string(job.rank(1)) + " (stuck_program) is stopped"));
  expect_waits_for_the_loss(shown.line_with(line_of(job, 0)));
  expect_waits_for_the_loss(shown.line_with(line_of(job, 2)));
  EXPECT_TRUE(contains(shown.text, line_of(job, 1) + "no answer\n"));
}

TEST(Inspect, SaysWhenTheRankIsSilentOverWhichTheOthersAreAsked) {
  const StuckJob job;
  job.stop(0);
  const auto shown = inspect(job.rank(2));
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_TRUE(contains(shown.text, line_of(job, 0) + "no answer\n"));
  EXPECT_TRUE(contains(shown.text, "the ranks are asked over the first one, which is silent"));
  expect_waits_for_the_loss(shown.line_with(line_of(job, 2)));
}

TEST(Inspect, ShowsTheSubGroupsToo) {
  run_ranks(3, [](const Group& group) {
    const auto part = group->new_group({0, 2});
    if (group->rank() == 2) {
      const auto waits = [](const Shown& shown) { return count(shown.text, "now in barrier #") == 2; };
      const auto shown = inspect_until(::getpid(), waits);
      EXPECT_EQ(shown.code, 0);
      EXPECT_EQ(count(shown.text, "\n  rank 0 (process "), 2) << shown.text;
      EXPECT_EQ(count(shown.text, "\n  rank 1 (process "), 1) << shown.text;
      const auto whole = shown.text.find("group of all 3 ranks, backend ");
      EXPECT_LT(whole, shown.text.find("group of ranks 0, 2, backend ")) << shown.text;
    }
    group->barrier();
  });
}

// Also with a backend that is broken and stays behind.
TEST(Inspect, ShowsWhyAGroupIsBroken) {
  run_ranks(2, [](const Group& group) {
    auto tensor = at::ones({64});
    if (group->rank() == 0) return group->fail("the data is bad");
    EXPECT_THROW(group->all_reduce(tensor), PeerLostError);
    const auto shown = inspect(::getpid());
    EXPECT_EQ(shown.code, 0);
    EXPECT_TRUE(contains(shown.text, ", broken: rank 0 failed: the data is bad"));
  });
}

TEST(Inspect, FindsNobodyInAProcessThatHasLeftItsGroup) {
  run_ranks(2, [](const Group& group) {
    group->barrier();
    group->shutdown();
    if (group->rank() == 0) return;  // it has stayed for the other one
    const auto shown = inspect(::getpid());
    EXPECT_EQ(shown.code, 1);
    EXPECT_TRUE(contains(shown.text, "runs, but neither it nor what it has started is a rank"));
    const auto askable = inspected_processes();
    EXPECT_EQ(std::count(askable.begin(), askable.end(), own_process_key()), 0) << "the thread is still there";
  });
}

}  // namespace
}  // namespace ddp::testing
