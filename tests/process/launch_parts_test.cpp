// The parts of ddprun that need no processes.

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <sstream>

#include "base/exit_code.hpp"
#include "launch/options.hpp"
#include "start/outcome.hpp"
#include "start/rank_environment.hpp"

namespace ddp::launch {
namespace {

using namespace start;

using namespace std::chrono_literals;

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
  EXPECT_NE(summary(outcomes).at(1).find("because it lost a peer"), std::string::npos) << summary(outcomes).at(1);
}

TEST(Outcome, ARankThatGaveUpACallIsNotToldToBeTheOneToBlame) {
  const std::vector<Outcome> outcomes{{.rank = 0, .status = exited(kStalledExitCode), .after = 2s},
                                      {.rank = 1, .status = SIGTERM, .sent = SIGTERM, .after = 5s},
                                      {.rank = 2, .status = exited(kStalledExitCode), .after = 2s}};
  EXPECT_EQ(summary(outcomes),
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

TEST(RankEnvironment, ReplacesWhatAnEnclosingLauncherSetAndKeepsTheRest) {
  const Job job{.id = "j", .ranks = 2, .master_port = 5, .store_descriptor = 9, .threads = std::nullopt};
  const std::vector<std::string> inherited{"RANK=7", "DDP_STORE_FD=3", "HOME=/h", "RANKED=yes", "OMP_NUM_THREADS=3"};
  auto variables = rank_environment(inherited, job, 1);
  const auto count = [&](const char* entry) { return std::ranges::count(variables, entry); };
  EXPECT_EQ(count("RANK=1") + count("HOME=/h") + count("RANKED=yes") + count("OMP_NUM_THREADS=3"), 4);
  EXPECT_EQ(std::ranges::count_if(variables, [](auto& entry) { return entry.starts_with("DDP_STORE_FD="); }), 0);
  EXPECT_EQ(count("RANK=7"), 0);
  variables = rank_environment(inherited, job, 0);
  EXPECT_EQ(count("DDP_STORE_FD=9"), 1);
}

std::optional<Options> parsed(std::vector<const char*> words) {
  words.insert(words.begin(), "ddprun");
  std::ostringstream out;
  return parse_options(static_cast<int>(words.size()), words.data(), out);
}

TEST(Options, DashesUnderscoresAndEqualSignsMeanTheSame) {
  for (const auto& words : {std::vector{"--nproc-per-node", "3", "prog"}, std::vector{"--nproc_per_node", "3", "prog"},
                            std::vector{"--nproc_per_node=3", "--no-python", "prog"}}) {
    EXPECT_EQ(parsed(words)->ranks, 3);
    EXPECT_EQ(parsed(words)->command, std::vector<std::string>{"prog"});
  }
}

TEST(Options, WhatFollowsTheProgramIsTheProgramsOwn) {
  const auto options = parsed({"--master-port", "29500", "prog", "--master-port", "1", "--", "--help"});
  EXPECT_EQ(options->master_port, 29500);
  EXPECT_EQ(options->command, (std::vector<std::string>{"prog", "--master-port", "1", "--", "--help"}));
}

}  // namespace
}  // namespace ddp::launch
