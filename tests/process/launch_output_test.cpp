// What becomes of the ranks' output.

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "process/ddprun_jobs.hpp"
#include "support/temp_folder.hpp"
#include "support/terminal.hpp"

namespace ddp::test {
namespace {

using testing::contents;
using testing::TempFolder;
using testing::Terminal;

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Every rank has said each of its lines once, whole and in order, `prefix` before it.
void expect_all_lines(const std::string& text, const std::string& stream, int ranks, int count,
                      const std::function<std::string(int)>& prefix) {
  std::vector<int> next(static_cast<std::size_t>(ranks), 0);
  for (const auto& line : lines_of(text)) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto start = prefix(rank) + stream + " " + std::to_string(rank) + " ";
      if (!line.starts_with(start)) continue;
      auto& i = next[static_cast<std::size_t>(rank)];
      ASSERT_EQ(line, start + std::to_string(i) + " " + std::string(static_cast<std::size_t>(i % 60), 'x') + " end");
      ++i;
    }
  }
  for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(next[static_cast<std::size_t>(rank)], count) << "rank " << rank;
}

std::string with_rank(int rank) { return "[rank " + std::to_string(rank) + "] "; }
std::string nothing(int) { return ""; }

TEST(LaunchOutput, NoLineIsTornOrLostWhereFourRanksWriteTenMegabytesEach) {
  auto job = ranks(4, {"many_lines", "100000"});
  EXPECT_EQ(job.finish(30s), 0);
  expect_all_lines(job.text(), "out", 4, 100000, with_rank);
  expect_all_lines(job.text(), "err", 4, 100000, with_rank);
  EXPECT_EQ(lines_of(job.text()).size(), 800000u + lines_with(job.text(), "ddprun: ").size());
}

TEST(LaunchOutput, ASlowReaderStopsTheRanksButNotTheLauncher) {
  auto job = ranks(2, {"many_lines", "100000"}, {"--shutdown-timeout", "0.2"});
  job.read_until("end", 1);  // and no more for now
  job.signal(SIGTERM);
  const auto begin = Clock::now();
  EXPECT_EQ(job.finish(), 128 + SIGTERM);
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST(LaunchOutput, GoesToFilesOfEachRankAndRestartToo) {
  const TempFolder folder;
  auto job =
      ranks(2, {"fail_until", "1"}, {"--max-restarts", "1", "--log-dir", folder.path().string(), "--rdzv-id", "j"});
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(job.occurrences("attempt "), 4) << job.text();
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto own = folder.path() / "j" / ("attempt_" + std::to_string(attempt)) / std::to_string(rank);
      EXPECT_EQ(contents(own / "stdout.log"),
                "[" + std::to_string(rank) + "] attempt " + std::to_string(attempt) + " of 1 job j\n");
      EXPECT_EQ(contents(own / "stderr.log"), "");
    }
  }
}

TEST(LaunchOutput, RedirectsShowNothingAndTeeShowsAll) {
  const TempFolder folder;
  auto job = ranks(2, {"many_lines", "1000"},
                   {"--log-dir", folder.path().string(), "--rdzv-id", "j", "--redirects", "0:3", "--tee", "1:1"});
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_EQ(lines_with(job.text(), "out 0").size(), 0u);
  EXPECT_EQ(lines_with(job.text(), "err 0").size(), 0u);
  EXPECT_EQ(lines_with(job.text(), "out 1").size(), 1000u);
  EXPECT_EQ(lines_with(job.text(), "err 1").size(), 1000u);
  const auto own = folder.path() / "j" / "attempt_0";
  expect_all_lines(contents(own / "0" / "stderr.log"), "err", 1, 1000, nothing);
  EXPECT_EQ(lines_of(contents(own / "1" / "stdout.log")).size(), 1000u);
  EXPECT_FALSE(std::filesystem::exists(own / "1" / "stderr.log"));
}

TEST(LaunchOutput, ASecondJobOfTheSameNameKeepsTheFirstOnesFiles) {
  const TempFolder folder;
  for (int i = 0; i < 2; ++i) {
    auto job = ranks(2, {"leave", "0", "0"}, {"--log-dir", folder.path().string(), "--rdzv-id", "j"});
    EXPECT_EQ(job.finish(), 0) << job.text();
  }
  auto names = folder.files();
  std::ranges::sort(names);
  EXPECT_EQ(names, (Words{"j", "j-2"}));
}

TEST(LaunchOutput, AFolderThatCannotBeIsNamedInOneLine) {
  auto job = ranks(2, {"leave", "0", "0"}, {"--log-dir", "/proc/no/such"});
  EXPECT_EQ(job.finish(), 2);
  EXPECT_EQ(lines_with(job.text(), "/proc/no/such").size(), 1u) << job.text();
}

TEST(LaunchOutput, AFullDiskIsSaidAndNothingElseIsLost) {
  const TempFolder folder;
  auto job = ddprun(
      {"--nproc-per-node", "2", "--tee", "0:1", "--log-dir", folder.path().string(), RANK_PROBE, "many_lines", "1000"},
      [] {
        const rlimit small{10000, 10000};
        ::setrlimit(RLIMIT_FSIZE, &small);
      });
  EXPECT_EQ(job.finish(), 0);
  const auto said = lines_with(job.text(), "cannot write on to");
  ASSERT_EQ(said.size(), 1u) << job.text();
  EXPECT_NE(said[0].find("attempt_0/0/stdout.log: File too large"), std::string::npos) << said[0];
  expect_all_lines(job.text(), "out", 2, 1000, with_rank);
}

TEST(LaunchOutput, TheFilterShowsSomeRanksAlone) {
  auto job = ranks(3, {"fail_until", "0"}, {"--local-ranks-filter", "0,2"});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.occurrences("[rank 0] [0] attempt"), 1) << job.text();
  EXPECT_EQ(job.occurrences("[rank 1]"), 0) << job.text();
  EXPECT_EQ(job.occurrences("[rank 2] [2] attempt"), 1) << job.text();
}

TEST(LaunchOutput, CanBeTheLaunchersOwn) {
  auto job = ranks(2, {"fail_until", "0"}, {"--inherit-output"});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.occurrences("[rank "), 0) << job.text();
  EXPECT_EQ(job.occurrences("] attempt 0"), 2) << job.text();
}

TEST(LaunchOutput, TheFirstFailuresLastWordsStandInTheSummary) {
  auto job = ranks(2, {"complain", "1", "5", "it was", "the disk"});
  EXPECT_EQ(job.finish(), 5);
  const auto after = job.text().substr(job.text().find("rank 1 failed first"));
  EXPECT_NE(after.find("its last lines on standard error:\nddprun:     | it was\nddprun:     | the disk\n"),
            std::string::npos)
      << job.text();
}

TEST(LaunchOutput, ALineWithoutAnEndIsShownToo) {
  auto job = ddprun({"--nproc-per-node", "2", "/bin/sh", "-c", "printf unfinished"});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.occurrences("] unfinished\n"), 2) << job.text();
}

TEST(LaunchOutput, ProcessesThatEscapeEndWithTheirRank) {
  auto job = ddprun({"--nproc-per-node", "2", "/bin/sh", "-c", "setsid sleep 20 & echo left $!"});
  const auto begin = Clock::now();
  job.read_until("left", 2);
  int status = 0;
  ASSERT_EQ(::waitpid(job.pid(), &status, 0), job.pid());
  EXPECT_EQ(status, 0);
  EXPECT_LT(Clock::now() - begin, 10s);
  for (const auto& line : lines_with(job.text(), "] left ")) {
    const pid_t stray = std::stoi(line.substr(line.find("left ") + 5));
    EXPECT_NE(::kill(stray, 0), 0) << line;
    ::kill(stray, SIGKILL);
  }
}

TEST(LaunchOutput, WhatAScriptHasStartedBeforeItBecameTheLauncherLivesOn) {
  Launched job(
      {"/bin/sh", "-c", "sleep 20 >/dev/null 2>&1 & echo before $!; exec " DDPRUN " --nproc-per-node 2 /bin/true"});
  EXPECT_EQ(job.finish(), 0) << job.text();
  const pid_t sleeper = std::stoi(job.text().substr(job.text().find("before ") + 7));
  EXPECT_EQ(::kill(sleeper, SIGKILL), 0) << "it has been ended";
}

TEST(LaunchOutput, AReaderThatStopsForGoodDoesNotKeepTheLauncher) {
  auto job = ranks(2, {"many_lines", "100000"}, {"--shutdown-timeout", "0.2"});
  job.read_until("end", 1);  // and nothing any more
  const ProcessHandle launcher(job.pid());
  job.signal(SIGTERM);
  const auto limit = Clock::now() + 15s;
  while (!launcher.ends_by(Clock::now() + 200ms) && Clock::now() < limit) job.signal(SIGTERM);
  EXPECT_LT(Clock::now(), limit);
}

/// What comes to a terminal that is the launcher's output and error.
std::string on_a_terminal(const Words& words, const std::function<void()>& before_exec = [] {}) {
  Terminal terminal;
  Words all{"--nproc-per-node", "2", RANK_PROBE};
  all.insert(all.end(), words.begin(), words.end());
  auto job = ddprun(all, [&] {
    ::dup2(terminal.descriptor(), STDOUT_FILENO);
    ::dup2(terminal.descriptor(), STDERR_FILENO);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "xterm", 1);
    before_exec();
  });
  EXPECT_EQ(job.finish(), 0);
  return terminal.text();
}

TEST(LaunchOutput, OnATerminalRanksHaveOneTooAndColours) {
  const auto text = on_a_terminal({"terminals"});
  EXPECT_NE(text.find("\x1b[36m[rank 0]\x1b[0m [0] terminals: output error\r\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\x1b[33m[rank 1]\x1b[0m [1] terminals: output error\r\n"), std::string::npos) << text;
  EXPECT_NE(text.find("30 %"), std::string::npos) << text;
  // Each bar ends as a line of its own, and nothing of an update stays beside another line.
  for (std::size_t at = text.find("0 %"); at != std::string::npos; at = text.find("0 %", at + 1)) {
    const auto rest = text.substr(at + 3, 5);
    EXPECT_TRUE(rest.empty() || rest.starts_with("\r\x1b[K") || rest.starts_with("\r\n") ||
                rest.starts_with("\x1b[K\r\n"))
        << text;
  }
}

TEST(LaunchOutput, NoColorIsHeeded) {
  const auto text = on_a_terminal({"terminals"}, [] { ::setenv("NO_COLOR", "1", 1); });
  EXPECT_EQ(text.find("\x1b[3"), std::string::npos) << text;
  EXPECT_NE(text.find("[rank 0] [0] terminals: output error"), std::string::npos) << text;
}

TEST(LaunchOutput, ElsewhereRanksHavePipes) {
  auto job = ranks(2, {"terminals"});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(lines_with(job.text(), "terminals:"), (Words{"[0] terminals:", "[1] terminals:"}));
  EXPECT_EQ(job.occurrences("\x1b[3"), 0);
}

TEST(LaunchOutput, AWriterThatMustNotWaitLosesNothing) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(::fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  auto job =
      ddprun({"--nproc-per-node", "2", RANK_PROBE, "many_lines", "20000"}, [&] { ::dup2(ends[1], STDOUT_FILENO); });
  pollfd room{ends[1], POLLOUT, 0};
  for (const auto limit = Clock::now() + 10s; ::poll(&room, 1, 0) == 1; ::usleep(1000)) ASSERT_LT(Clock::now(), limit);
  ::close(ends[1]);
  std::string text;
  std::thread reader([&] {
    char buffer[65536];
    for (ssize_t size = 0; (size = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(size));
    }
  });
  EXPECT_EQ(job.finish(), 0);
  reader.join();
  ::close(ends[0]);
  expect_all_lines(text, "out", 2, 20000, with_rank);
}

TEST(LaunchOutput, WhatCannotBeWrittenIsSaidToBeLost) {
  auto job = ddprun({"--nproc-per-node", "2", RANK_PROBE, "many_lines", "1000"}, [] {
    const int full = ::open("/dev/full", O_WRONLY);
    ::dup2(full, STDOUT_FILENO);
  });
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(lines_with(job.text(), "output is lost: cannot write to standard output: No space left on device").size(),
            1u);
  expect_all_lines(job.text(), "err", 2, 1000, with_rank);
}

TEST(LaunchOutput, AKilledRelayIsNamed) {
  auto job = ddprun({"--nproc-per-node", "2", "/bin/sh", "-c", "echo ready; while :; do echo x; sleep 0.05; done"});
  job.read_until("ready", 2);
  std::ifstream children("/proc/" + std::to_string(job.pid()) + "/task/" + std::to_string(job.pid()) + "/children");
  for (pid_t child = 0; children >> child;) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(child) + "/comm") >> std::ws, name);
    if (name == "ddprun-relay") ::kill(child, SIGKILL);
  }
  EXPECT_EQ(job.finish(), 128 + SIGPIPE);
  EXPECT_EQ(lines_with(job.text(), "ddprun: the process ddprun-relay, which carries").size(), 1u) << job.text();
}

TEST(LaunchOutput, AReaderThatIsGoneEndsNothing) {
  auto job = ddprun({"--nproc-per-node", "2", RANK_PROBE, "many_lines", "20000"}, [] {
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(98);
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
  });
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(lines_with(job.text(), "err 1").size(), 20000u);
}

}  // namespace
}  // namespace ddp::test
