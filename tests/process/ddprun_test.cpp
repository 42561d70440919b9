// ddprun as a user meets it: real processes, real signals. DDPRUN and RANK_PROBE are the paths of the programs.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "process/ddprun_jobs.hpp"

namespace ddp::test {
namespace {

/// What the probe's "pids A B" lines name.
std::vector<ProcessHandle> announced(const std::string& text) {
  std::vector<ProcessHandle> processes;
  for (auto at = text.find("pids "); at != std::string::npos; at = text.find("pids ", at + 1)) {
    std::istringstream pids(text.substr(at + 5));
    pid_t rank = 0, child = 0;
    pids >> rank >> child;
    processes.emplace_back(rank);
    processes.emplace_back(child);
  }
  return processes;
}

void expect_all_end_within(const std::vector<ProcessHandle>& processes, std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  for (const auto& process : processes) {
    const bool ended = process.ends_by(end);
    EXPECT_TRUE(ended) << "a process was left behind";
    if (!ended) process.kill();
  }
}

// --- what ranks are given

TEST(Ddprun, RanksGetTorchrunsVariables) {
  auto job =
      ranks(2, {"variables", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
                "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT",
                "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"});
  ASSERT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(
      lines_with(job.text(), "[1] "),
      (Words{"[1] GROUP_RANK=0", "[1] GROUP_WORLD_SIZE=1", "[1] LOCAL_RANK=1", "[1] LOCAL_WORLD_SIZE=2",
             "[1] MASTER_ADDR=127.0.0.1", "[1] RANK=1", "[1] ROLE_NAME=default", "[1] ROLE_RANK=1",
             "[1] ROLE_WORLD_SIZE=2", "[1] TORCHELASTIC_MAX_RESTARTS=0", "[1] TORCHELASTIC_RESTART_COUNT=0",
             "[1] TORCHELASTIC_USE_AGENT_STORE=True", "[1] TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "[1] WORLD_SIZE=2"}));
}

TEST(Ddprun, RanksOfOneJobAgreeOnPortAndIdAndTwoJobsDoNot) {
  std::set<std::string> ports, ids;
  std::vector<Launched> jobs;
  for (int i = 0; i < 2; ++i) jobs.push_back(ranks(2, {"variables", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}));
  for (auto& job : jobs) {
    ASSERT_EQ(job.finish(), 0) << job.text();
    for (const auto& line : lines_with(job.text(), "MASTER_PORT=")) ports.insert(line.substr(4));
    for (const auto& line : lines_with(job.text(), "RUN_ID=")) ids.insert(line.substr(4));
  }
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_LE(ports.size(), 2u);
}

TEST(Ddprun, OnlyRankZeroSeesASocketAndNobodyAnythingElse) {
  auto job = ddprun({"--nproc_per_node", "2", RANK_PROBE, "descriptors"}, [] {
    dup2(STDERR_FILENO, 7);  // open in the parent, and meant for nobody
  });
  ASSERT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(lines_with(job.text(), "open:"), (Words{"[0] open: 0 1 2 socket", "[1] open: 0 1 2"}));
}

TEST(Ddprun, RankZerosSocketListensBeforeAnyRankRuns) {
  auto job = ranks(4, {"meet"});
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("met"), 4);
}

TEST(Ddprun, FortyJobsAtOnceNeverClash) {
  std::vector<Launched> jobs;
  for (int i = 0; i < 40; ++i) jobs.push_back(ranks(2, {"meet"}, {"--standalone"}));
  for (auto& job : jobs) EXPECT_EQ(job.finish(), 0) << job.text();
}

TEST(Ddprun, ArgumentsArriveUntouched) {
  const Words given{"--nproc-per-node", "9", "--", "-h", "", "a b", "--x=$y"};
  Words action{"arguments"};
  action.insert(action.end(), given.begin(), given.end());
  for (const Words& flags : {Words{}, Words{"--"}}) {
    auto job = ranks(1, action, flags);
    ASSERT_EQ(job.finish(), 0) << job.text();
    for (const auto& word : given) EXPECT_EQ(job.occurrences("[0] <" + word + ">\n"), 1) << word;
  }
}

TEST(Ddprun, TheUsersThreadsWin) {
  auto job = ddprun({RANK_PROBE, "variables", "OMP_NUM_THREADS"}, [] { setenv("OMP_NUM_THREADS", "3", 1); });
  ASSERT_EQ(job.finish(), 0);
  EXPECT_EQ(job.text(), "[0] OMP_NUM_THREADS=3\n");
}

void pin_to_one_core() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  CPU_ZERO(&allowed);
  CPU_SET(core, &allowed);
  sched_setaffinity(0, sizeof allowed, &allowed);
}

TEST(Ddprun, AllowedCoresAreSharedOutAsThreadsWithOneLine) {
  auto job = ddprun({"--nproc-per-node=2", RANK_PROBE, "variables", "OMP_NUM_THREADS"}, [] {
    unsetenv("OMP_NUM_THREADS");
    pin_to_one_core();
  });
  ASSERT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("] OMP_NUM_THREADS=1\n"), 2) << job.text();
  EXPECT_EQ(lines_with(job.text(), "ddprun: ").size(), 1u) << job.text();
}

TEST(Ddprun, WorksWithoutStandardStreams) {
  for (const bool error_too : {false, true}) {
    auto job = ddprun({"--nproc-per-node", "2", RANK_PROBE, "leave", "1", "5"}, [error_too] {
      close(STDIN_FILENO);
      close(STDOUT_FILENO);
      if (error_too) close(STDERR_FILENO);
    });
    EXPECT_EQ(job.finish(), 5);
  }
}

// --- how it ends

TEST(Ddprun, ExitCodeIsThatOfTheFailedRank) {
  auto job = ranks(2, {"leave", "1", "17"});
  EXPECT_EQ(job.finish(), 17);
  EXPECT_NE(job.text().find("rank 1 failed first"), std::string::npos) << job.text();
  EXPECT_NE(job.text().find("exit code 17"), std::string::npos) << job.text();
}

TEST(Ddprun, ASignalIsNamedAndGives128More) {
  auto job = ranks(2, {"die", "1", std::to_string(SIGSEGV)});
  EXPECT_EQ(job.finish(), 128 + SIGSEGV);
  EXPECT_NE(job.text().find("rank 1 failed first"), std::string::npos) << job.text();
  EXPECT_NE(job.text().find("SIGSEGV (signal 11)"), std::string::npos) << job.text();
}

TEST(Ddprun, TheCauseIsToldFromPeersThatOnlyNoticedIt) {
  auto job = ranks(3, {"lose_rank_1"});
  const auto begin = Clock::now();
  EXPECT_EQ(job.finish(), 128 + SIGKILL) << job.text();
  EXPECT_LT(Clock::now() - begin, 3s);
  EXPECT_EQ(lines_with(job.text(), "rank 1 failed first").size(), 1u) << job.text();
  EXPECT_EQ(lines_with(job.text(), "SIGKILL (signal 9), not by ddprun").size(), 1u) << job.text();
  EXPECT_EQ(lines_with(job.text(), "exit code 1, most likely because of the first").size(), 2u) << job.text();
}

TEST(Ddprun, RanksThatStayAfterAFailureAreEndedAfterAGraceTime) {
  auto job = ranks(3, {"leave_alone", "2", "9"});
  EXPECT_EQ(job.finish(), 9) << job.text();
  EXPECT_EQ(lines_with(job.text(), "killed by SIGTERM (signal 15), sent by ddprun").size(), 2u) << job.text();
}

TEST(Ddprun, ARankThatEndsWellWhileOthersRunIsAFailureAfterAWhile) {
  auto job = ranks(2, {"leave_others", "1"}, {"--exit-grace", "0.3", "--shutdown-timeout", "1"});
  EXPECT_EQ(job.finish(), 1) << job.text();
  EXPECT_EQ(lines_with(job.text(), "ranks have ended well while others still ran").size(), 1u) << job.text();
  EXPECT_EQ(lines_with(job.text(), "rank 0, at").size(), 1u) << job.text();
}

TEST(Ddprun, AllRanksStartAgainAsOftenAsTheyMay) {
  auto job = ranks(2, {"fail_until", "2"}, {"--max-restarts", "2"});
  EXPECT_EQ(job.finish(), 0) << job.text();
  for (const char* const attempt : {"attempt 0 of 2", "attempt 1 of 2", "attempt 2 of 2"}) {
    EXPECT_EQ(job.occurrences(attempt), 2) << job.text();
  }
  EXPECT_EQ(lines_with(job.text(), "rank 1 failed first").size(), 2u) << job.text();
  EXPECT_EQ(lines_with(job.text(), "restarting all ranks").size(), 2u) << job.text();
}

TEST(Ddprun, OutOfRestartsTheLastFailureCounts) {
  auto job = ranks(2, {"fail_until", "9"}, {"--max-restarts", "1"});
  EXPECT_EQ(job.finish(), 7) << job.text();
  EXPECT_EQ(job.occurrences("attempt 1 of 1"), 2) << job.text();
  EXPECT_EQ(job.occurrences("attempt 2"), 0) << job.text();
  EXPECT_EQ(lines_with(job.text(), "no restart is left (1 of 1)").size(), 1u) << job.text();
}

TEST(Ddprun, AHundredRanksNeedNoHigherLimitOfFilesThanTheyHave) {
  auto job = ddprun({"--nproc-per-node", "100", "/bin/sh", "-c", "ulimit -n"}, [] {
    const rlimit low{64, 4096};
    ::setrlimit(RLIMIT_NOFILE, &low);
  });
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("] 64\n"), 100) << job.text();
}

TEST(Ddprun, TooFewFilesAreNamedWithTheRemedy) {
  auto job = ddprun({"--nproc-per-node", "100", "/bin/true"}, [] {
    const rlimit low{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &low);
  });
  EXPECT_EQ(job.finish(), 2) << job.text();
  EXPECT_NE(job.text().find("raise ulimit -n"), std::string::npos) << job.text();
}

TEST(Ddprun, WhatIsToldToStopDoesNotStartAgain) {
  auto job = ranks(2, {"family"}, {"--max-restarts", "5"});
  job.read_until("pids", 2);
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(), 128 + SIGTERM) << job.text();
  EXPECT_EQ(job.occurrences("restarting"), 0) << job.text();
}

TEST(Ddprun, EachAttemptsRankZeroHasASocketThatListens) {
  auto job = ddprun({"--nproc-per-node", "2", "--max-restarts", "1", "/bin/sh", "-c",
                     std::string(RANK_PROBE) + " meet && test $TORCHELASTIC_RESTART_COUNT = 1"});
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("] met\n"), 4) << job.text();
}

TEST(Ddprun, Sigusr1ReachesRanksThatHandleItAndSetsNoLimit) {
  auto job = ranks(2, {"answer_usr1"}, {"--shutdown-timeout", "0"});
  job.read_until("ready", 2);
  job.signal(SIGUSR1);
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("stopping\n"), 2) << job.text();
}

TEST(Ddprun, CoresAreSharedOutWithoutOverlap) {
  auto job =
      ddprun({"--bind-cores", "--nproc-per-node", "2", RANK_PROBE, "cores"}, [] { unsetenv("OMP_NUM_THREADS"); });
  ASSERT_EQ(job.finish(), 0) << job.text();
  std::set<std::string> cores;
  std::size_t count = 0;
  for (const auto& line : lines_with(job.text(), "cores:")) {
    std::istringstream words(line.substr(line.find("cores:") + 6));
    for (std::string word; words >> word && word != "threads:"; ++count) cores.insert(word);
    words >> count;
    EXPECT_EQ(count, 1u) << line;
    count = 0;
  }
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  EXPECT_EQ(cores.size(), static_cast<std::size_t>(CPU_COUNT(&allowed)));
}

TEST(Ddprun, ADryRunShowsCommandsThatAShellTakesAndStartsNothing) {
  auto job = ranks(2, {"arguments", "a b", "it's"}, {"--dry-run", "--master-port", "29500"});
  ASSERT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("# rank "), 2) << job.text();
  const auto first = job.text().find("# rank 1");
  Launched shell({"/bin/sh", "-c", job.text().substr(first)});
  EXPECT_EQ(shell.finish(), 0);
  EXPECT_EQ(shell.text(), "[1] <a b>\n[1] <it's>\n");
}

TEST(Ddprun, NothingIsSaidAboutSuccess) {
  auto job =
      ddprun({"--nproc-per-node", "2", RANK_PROBE, "leave", "0", "0"}, [] { setenv("OMP_NUM_THREADS", "1", 1); });
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.text(), "");
}

// --- nothing is left behind

class DdprunStopped : public testing::TestWithParam<int> {};

TEST_P(DdprunStopped, TakesRanksAndTheirChildrenAlong) {
  auto job = ranks(2, {"family"});
  const auto family = announced(job.read_until("pids", 2));
  ASSERT_EQ(family.size(), 4u);
  job.signal(GetParam());
  expect_all_end_within(family, 3s);
  const int expected = GetParam() == SIGKILL ? -SIGKILL : 128 + GetParam();
  EXPECT_EQ(job.finish(), expected) << job.text();
}

INSTANTIATE_TEST_SUITE_P(By, DdprunStopped, testing::Values(SIGINT, SIGTERM, SIGHUP, SIGKILL),
                         [](const auto& param) { return std::string("SIG") + sigabbrev_np(param.param); });

TEST(Ddprun, WhatARankLeavesRunningEndsWithIt) {
  auto job = ranks(2, {"leave_child"});
  EXPECT_EQ(job.finish(10s), 0) << "a child kept the pipe open: " << job.text();
}

TEST(Ddprun, RanksThatIgnoreTermAreKilledAfterTheTimeout) {
  auto job = ranks(2, {"family", std::to_string(SIGTERM)}, {"--shutdown-timeout", "0.3"});
  const auto family = announced(job.read_until("pids", 2));
  job.signal(SIGTERM);
  expect_all_end_within(family, 3s);
  EXPECT_EQ(job.finish(), 128 + SIGKILL);
  EXPECT_NE(job.text().find("did not end: sending SIGKILL"), std::string::npos) << job.text();
}

TEST(Ddprun, ASecondCtrlCKillsAtOnce) {
  auto job = ranks(2, {"family", std::to_string(SIGINT), std::to_string(SIGTERM)});
  const auto family = announced(job.read_until("pids", 2));
  job.signal(SIGINT);
  job.read_until("passing SIGINT", 1);
  job.signal(SIGINT);  // with the first: timeout(1) signals a process and then its group
  ::usleep(600'000);
  EXPECT_EQ(job.text().find("killing"), std::string::npos);
  job.signal(SIGINT);
  expect_all_end_within(family, 3s);
  EXPECT_EQ(job.finish(), 128 + SIGKILL);
}

TEST(Ddprun, AProgramBehindAShellHasItsTimeToSaveToo) {
  auto job = ddprun({"--nproc-per-node", "2", "/bin/sh", "-c", std::string(RANK_PROBE) + " save_slowly_on_term; true"});
  job.read_until("pids", 2);
  job.signal(SIGTERM);  // ends the shells at once
  EXPECT_EQ(job.finish(), 128 + SIGTERM) << job.text();
  EXPECT_EQ(job.occurrences("] saved\n"), 2) << job.text();
}

TEST(Ddprun, RanksThatEndWellOnATermAreASuccess) {
  auto job = ranks(2, {"save_on_term"});
  job.read_until("pids", 2);
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(lines_with(job.text(), "all ranks have ended well after SIGTERM").size(), 1u) << job.text();
}

TEST(Ddprun, Sigusr2ReachesRanksThatHandleItAlsoBehindAShell) {
  auto job = ddprun({"--nproc-per-node", "2", "/bin/sh", "-c", RANK_PROBE " answer_usr2; true"});
  job.read_until("pids", 2);
  job.signal(SIGUSR2);
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("asked\n"), 2) << job.text();
  EXPECT_NE(job.text().find("ddprun: passing SIGUSR2 on to ranks 0, 1\n"), std::string::npos) << job.text();
}

TEST(Ddprun, Sigusr2DoesNotEndRanksThatDoNotHandleIt) {
  auto job = ranks(2, {"save_on_term"});
  job.read_until("pids", 2);
  job.signal(SIGUSR2);
  job.read_until("ddprun: not passing SIGUSR2 on to ranks 0, 1, which would end by it\n", 1);
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(), 0) << job.text();
}

TEST(Ddprun, AHangupIgnoredByNohupStaysIgnored) {
  auto job = ddprun({RANK_PROBE, "save_on_term"}, [] { std::signal(SIGHUP, SIG_IGN); });
  job.read_until("pids", 1);
  job.signal(SIGHUP);
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("passing SIGHUP"), 0);
}

TEST(Ddprun, AParentThatIgnoresItsChildrenChangesNothing) {
  auto job = ddprun({RANK_PROBE, "leave", "0", "4"}, [] { std::signal(SIGCHLD, SIG_IGN); });
  EXPECT_EQ(job.finish(), 4) << job.text();
}

// --- what is refused

/// One line, code 2.
std::string refusal(const Words& words) {
  auto job = ddprun(words, [] { setenv("OMP_NUM_THREADS", "1", 1); });
  EXPECT_EQ(job.finish(), 2) << job.text();
  EXPECT_EQ(std::ranges::count(job.text(), '\n'), 1) << job.text();
  EXPECT_TRUE(job.text().starts_with("ddprun: ")) << job.text();
  return job.text();
}

void expect_mentions(const std::string& text, const std::string& word) {
  EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(Ddprun, WrongFlagsAreNamedInOneLine) {
  expect_mentions(refusal({"--nproc-per-node", "0", "true"}), "--nproc-per-node");
  expect_mentions(refusal({"--nproc-per-node", "two", "true"}), "\"two\"");
  expect_mentions(refusal({"--nproc-per-node"}), "--nproc-per-node");
  expect_mentions(refusal({"--master-port", "70000", "true"}), "65535");
  expect_mentions(refusal({"--shutdown-timeout", "-1", "true"}), "--shutdown-timeout");
  expect_mentions(refusal({"--standalone", "--master-port", "29500", "true"}), "--standalone");
  expect_mentions(refusal({"--colour", "red", "true"}), "--colour");
  expect_mentions(refusal({"--nproc-per-node", "2"}), "no program");
  expect_mentions(refusal({}), "no program");
}

TEST(Ddprun, AProgramThatCannotRunIsNamedInOneLine) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("ddprun_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const auto file = [&](const char* name, const char* content, mode_t mode) {
    const auto path = (folder / name).string();
    std::ofstream(path) << content;
    chmod(path.c_str(), mode);
    return path;
  };
  expect_mentions(refusal({"no_such_program"}), "no program no_such_program on the PATH");
  expect_mentions(refusal({"./no/such"}), "./no/such");
  expect_mentions(refusal({folder.string()}), "folder");
  expect_mentions(refusal({file("plain", "x", 0644)}), "chmod +x");
  expect_mentions(refusal({file("train.py", "x", 0644)}), "python3 " + (folder / "train.py").string());
  expect_mentions(refusal({"--nproc-per-node", "2", file("bare", "echo hello\n", 0755)}), "#!/bin/sh");
  expect_mentions(refusal({file("lost", "#!/no/such/shell\n", 0755)}), "interpreter");
  std::filesystem::remove_all(folder);
}

TEST(Ddprun, APortInUseIsNamedInOneLine) {
  auto other = ddprun({RANK_PROBE, "show_and_stay", "MASTER_PORT"});
  const auto& text = other.read_until("] MASTER_PORT=", 1);  // one write, so the whole line
  const auto port = std::to_string(std::stoi(text.substr(text.find("MASTER_PORT=") + 12)));
  expect_mentions(refusal({"--master-port", port, RANK_PROBE, "leave", "0", "0"}), "127.0.0.1:" + port);
}

TEST(Ddprun, HelpAndVersionAreNoErrors) {
  for (const char* flag : {"--help", "-h", "--version"}) {
    auto job = ddprun({flag});
    EXPECT_EQ(job.finish(), 0);
    expect_mentions(job.text(), "ddprun");
  }
}

// --- what it is made of

TEST(Ddprun, LoadsNoLibTorch) {
  Launched ldd({"/usr/bin/ldd", DDPRUN});
  EXPECT_EQ(ldd.finish(), 0);
  expect_mentions(ldd.text(), "libc.so");
  EXPECT_EQ(ldd.text().find("torch"), std::string::npos) << ldd.text();
  EXPECT_EQ(ldd.text().find("libc10"), std::string::npos) << ldd.text();
}

TEST(Ddprun, IsUpInMilliseconds) {
  std::vector<double> milliseconds;
  for (int i = 0; i < 21; ++i) {
    const auto begin = Clock::now();
    auto job = ddprun({"/bin/true"});
    ASSERT_EQ(job.finish(), 0);
    milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::ranges::sort(milliseconds);
  std::printf("launch to end of a program that does nothing: median %.1f ms\n", milliseconds[10]);
  EXPECT_LT(milliseconds[10], 500) << "20 ms on a machine at rest";
}

}  // namespace
}  // namespace ddp::test
