// The parts of ddprun that need no processes.

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.hpp"
#include "launch/summary.hpp"
#include "start/outcome.hpp"
#include "start/rank_environment.hpp"

namespace ddp::launch {
namespace {

using namespace start;

using namespace std::chrono_literals;

/// The summary, without the time of day.
std::vector<std::string> told(const std::vector<Outcome>& outcomes) {
  auto lines = summary({.outcomes = outcomes, .tails = {}, .begin = {}});
  for (auto& line : lines) {
    if (const auto at = line.find(" (1970-01-01"); at != std::string::npos) line.erase(at, line.find(')') + 1 - at);
  }
  return lines;
}

int exited(int code) { return code << 8; }  // as waitpid() tells it

TEST(Outcome, TheFirstOfSeveralFailuresCounts) {
  EXPECT_EQ(first_failure({{.rank = 0, .status = 0, .after = 1s},
                           {.rank = 2, .status = exited(3), .after = 2s},
                           {.rank = 1, .status = SIGSEGV, .after = 3s}})
                ->rank,
            2);
  EXPECT_EQ(first_failure({{.rank = 0, .status = 0}}), nullptr);
}

TEST(Outcome, ADeathCountsBeforeTheEchoesThatWereSeenAMomentEarlier) {
  EXPECT_EQ(first_failure({{.rank = 0, .status = exited(1), .after = 1000ms},
                           {.rank = 1, .status = SIGABRT, .after = 1010ms},
                           {.rank = 2, .status = exited(17), .after = 1020ms},
                           {.rank = 3, .status = SIGKILL, .after = 1030ms}})
                ->rank,
            3);
  EXPECT_EQ(first_failure(
                {{.rank = 0, .status = exited(1), .after = 1000ms}, {.rank = 1, .status = exited(17), .after = 1010ms}})
                ->rank,
            1);
}

TEST(Outcome, ARankThatSaysItLostAPeerIsNeverTheCause) {
  const std::vector<Outcome> outcomes{{.rank = 0, .status = exited(kLostPeerExitCode), .after = 1s},
                                      {.rank = 1, .status = exited(1), .after = 3s}};
  EXPECT_EQ(first_failure(outcomes)->rank, 1);
  EXPECT_NE(told(outcomes).at(1).find("because it lost a peer"), std::string::npos) << told(outcomes).at(1);
}

TEST(Outcome, ARankThatGaveUpACallIsNotToldToBeTheOneToBlame) {
  const std::vector<Outcome> outcomes{{.rank = 0, .status = exited(kStalledExitCode), .after = 2s},
                                      {.rank = 1, .status = SIGTERM, .sent = SIGTERM, .after = 5s},
                                      {.rank = 2, .status = exited(kStalledExitCode), .after = 2s}};
  EXPECT_EQ(told(outcomes),
            (std::vector<std::string>{
                "rank 0 gave up first, 2.0 s after the start: exit code 75, a call that did not end; its "
                "error names who held it up",
                "  rank 1, at 5.0 s: killed by SIGTERM (signal 15), sent by ddprun",
                "  rank 2, at 2.0 s: exit code 75, a call that did not end"}));
  auto crashed = outcomes;
  crashed.push_back({.rank = 3, .status = SIGSEGV, .after = 2050ms});
  EXPECT_EQ(first_failure(crashed)->rank, 3);
}

TEST(Outcome, WhatDdprunEndedIsNotTheCause) {
  EXPECT_EQ(first_failure({{.rank = 0, .status = SIGTERM, .sent = SIGTERM, .after = 1s},
                           {.rank = 1, .status = exited(1), .after = 2s}})
                ->rank,
            1);
}

TEST(Summary, TellsWhenAndWhereAndTheLastWords) {
  const auto lines = summary({.outcomes = {{.rank = 1, .status = exited(3), .after = 1s, .host = "b"},
                                           {.rank = 0, .status = exited(76), .after = 2s, .host = "a"}},
                              .tails = {{1, "first\nlast\n"}, {0, "echo\n"}},
                              .begin = std::chrono::system_clock::now()});
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_TRUE(lines[0].starts_with("rank 1 failed first, 1.0 s after the start (20")) << lines[0];
  EXPECT_TRUE(lines[0].ends_with(" on b): exit code 3")) << lines[0];
  EXPECT_EQ(lines[1], "  its last lines on standard error:");
  EXPECT_EQ(lines[2], "    | first");
  EXPECT_EQ(lines[3], "    | last");
  EXPECT_EQ(lines[4], "  rank 0, at 2.0 s on a: exit code 76, because it lost a peer");
}

TEST(Summary, OfThousandsOfRanksFitsAScreen) {
  std::vector<Outcome> outcomes{{.rank = 0, .status = exited(3), .after = 1s}};
  for (int rank = 1; rank < 2000; ++rank) outcomes.push_back({.rank = rank, .status = exited(76), .after = 2s});
  const auto lines = told(outcomes);
  EXPECT_EQ(lines.size(), 42u);
  EXPECT_EQ(lines.back(), "  and 1959 others");
}

TEST(RankEnvironment, RanksOfASecondNodeCountOn) {
  const Job job{.id = "j",
                .world_size = 5,
                .first_rank = 3,
                .ranks = 2,
                .nodes = 2,
                .node_rank = 1,
                .role = "r",
                .master_address = "a",
                .master_port = 5,
                .restart = 2,
                .max_restarts = 4,
                .store_descriptor = 9};
  const auto variables = rank_environment({"TORCH_NCCL_ASYNC_ERROR_HANDLING=3"}, job, 1);
  for (const char* const entry :
       {"RANK=4", "LOCAL_RANK=1", "ROLE_RANK=4", "WORLD_SIZE=5", "LOCAL_WORLD_SIZE=2", "ROLE_WORLD_SIZE=5",
        "ROLE_NAME=r", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=5", "TORCHELASTIC_RUN_ID=j",
        "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_MAX_RESTARTS=4", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3"}) {
    EXPECT_EQ(std::ranges::count(variables, entry), 1) << entry;
  }
  EXPECT_EQ(variables.size(), 16u);
}

TEST(RankEnvironment, ReplacesWhatAnEnclosingLauncherSetAndKeepsTheRest) {
  const Job job{.id = "j", .world_size = 2, .ranks = 2, .master_port = 5, .store_descriptor = 9};
  const std::vector<std::string> inherited{"RANK=7", "DDP_STORE_FD=3", "HOME=/h", "RANKED=yes", "OMP_NUM_THREADS=3"};
  auto variables = rank_environment(inherited, job, 1);
  const auto count = [&](const char* entry) { return std::ranges::count(variables, entry); };
  EXPECT_EQ(count("RANK=1") + count("HOME=/h") + count("RANKED=yes") + count("OMP_NUM_THREADS=3"), 4);
  EXPECT_EQ(std::ranges::count_if(variables, [](auto& entry) { return entry.starts_with("DDP_STORE_FD="); }), 0);
  EXPECT_EQ(count("RANK=7"), 0);
  variables = rank_environment(inherited, job, 0);
  EXPECT_EQ(count("DDP_STORE_FD=9"), 1);
}

}  // namespace
}  // namespace ddp::launch
