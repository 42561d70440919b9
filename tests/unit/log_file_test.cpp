// log::to_file() and DDP_LOG_FILE. Each test logs in children, as what a process logs to is its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/log.hpp"
#include "support/shared.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "unit/log_heard.hpp"

namespace ddp::testing {
namespace {

using Names = std::vector<std::string>;

class LogToFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string text(const std::string& name) const { return contents(folder_ / name); }
  Lines lines(const std::string& name) const { return timeless(text(name)); }
  Names files() const { return folder_.files(); }

 private:
  TempFolder folder_;
};

void be_rank(int rank) { log::set_identity({.rank = rank, .world_size = 4}); }

/// The text of the `Expected` that `call` throws.
template <class Expected>
void print_error(const std::function<void()>& call) {
  try {
    call();
    dprintf(STDERR_FILENO, "time no error\n");
  } catch (const Expected& error) {
    dprintf(STDERR_FILENO, "time %s\n", error.what());
  }
}

TEST_F(LogToFile, RankZeroWritesWhatItShowsLetterByLetter) {
  const auto shown = heard([&] {
    setenv("DDP_LOG_SUBSYS", "coll", 1);
    be_rank(0);
    log::to_file(path("run.log"));
    log::info("one\ntwo {}", std::string(9000, 'x'));
    log::all.error("all");
    log::detail(log::Subsystem::coll, "part");
    log::debug("not shown");
    log::only(1).error("not mine");
  });
  EXPECT_EQ(lines_of(shown).size(), 6U) << shown;
  EXPECT_EQ(text("run.log"), shown);
}

TEST_F(LogToFile, OtherRanksNeitherMakeNorWriteAPlainFile) {
  EXPECT_EQ(heard_lines([&] {
              be_rank(1);
              log::to_file(path("new/run.log"));
              log::all.info("all");
              log::info("rank 0");
            }),
            (Lines{"info rank 1: all"}));
  EXPECT_EQ(files(), Names{});
}

TEST_F(LogToFile, AFileOfEachRankAlsoHasItsLinesForRankZero) {
  EXPECT_EQ(heard_lines([&] {
              be_rank(2);
              log::to_file(path("rank{rank}/of{rank}.log"));
              log::info("for rank 0");
              log::all.info("for all");
              log::only(2).info("for this one");
              log::only(1).info("for another");
              log::debug("below the level");
              for (int i = 0; i < 3; ++i) log::every(2).info("turn {}", i);
            }),
            (Lines{"info rank 2: for all", "info rank 2: for this one"}));
  EXPECT_EQ(files(), Names{"rank2"});
  EXPECT_EQ(lines("rank2/of2.log"), (Lines{"info rank 2: for rank 0", "info rank 2: for all",
                                           "info rank 2: for this one", "info rank 2: turn 0", "info rank 2: turn 2"}));
}

TEST_F(LogToFile, TheLevelHoldsForTheFileToo) {
  heard([&] {
    setenv("DDP_LOG_LEVEL", "error", 1);
    be_rank(1);
    log::to_file(path("{rank}.log"));
    log::warn("w");
    log::error("e");
  });
  EXPECT_EQ(lines("1.log"), (Lines{"error rank 1: e"}));
}

TEST_F(LogToFile, ItAppendsAndALaterFileTakesOver) {
  overwrite(path("a.log"), "time before\n");
  heard([&] {
    be_rank(0);
    log::to_file(path("a.log"));
    log::info("1");
    log::to_file(path("b.log"));
    log::info("2");
  });
  EXPECT_EQ(lines("a.log"), (Lines{"before", "info rank 0: 1"}));
  EXPECT_EQ(lines("b.log"), (Lines{"info rank 0: 2"}));
}

TEST_F(LogToFile, BeforeTheRankIsKnownItIsALogicErrorAndMakesNothing) {
  EXPECT_EQ(heard_lines([&] { print_error<std::logic_error>([&] { log::to_file(path("run.log")); }); }),
            (Lines{"log::to_file(\"" + path("run.log") +
                   "\") before init_process_group(): this process does not know its rank yet, and all ranks would "
                   "write; call it after that"}));
  EXPECT_EQ(files(), Names{});
}

TEST_F(LogToFile, AnEmptyPathIsALogicErrorOnEveryRank) {
  EXPECT_EQ(heard_lines([] {
              be_rank(1);
              print_error<std::invalid_argument>([] { log::to_file(""); });
            }),
            (Lines{"log::to_file: the path is empty"}));
}

TEST_F(LogToFile, AFileThatCannotBeOpenedIsAConfigErrorAndTheFormerGoesOn) {
  overwrite(path("file"), "");
  ASSERT_EQ(mkdir(path("folder3").c_str(), 0700), 0);
  const auto shown = heard_lines([&] {
    be_rank(3);
    log::to_file(path("rank{rank}.log"));
    print_error<ConfigError>([&] { log::to_file(path("file/{rank}.log")); });
    print_error<ConfigError>([] { log::to_file("/proc/none/{rank}.log"); });
    print_error<ConfigError>([&] { log::to_file(path("folder") + "{rank}"); });
    log::info("still here");
  });
  ASSERT_EQ(shown.size(), 3U);
  const std::string begin = "rank 3 of 4: log::to_file: the ", remedy = "; give a path where this process may write";
  EXPECT_EQ(shown[0], begin + "file \"" + path("file/3.log") + "\" cannot be opened: Not a directory" + remedy);
  EXPECT_EQ(shown[1], begin + "folder \"/proc/none\" cannot be made: No such file or directory" + remedy);
  EXPECT_EQ(shown[2], begin + "file \"" + path("folder3") + "\" cannot be opened: Is a directory" + remedy);
  EXPECT_EQ(lines("rank3.log"), (Lines{"info rank 3: still here"}));
}

TEST_F(LogToFile, TheVariableNamesAFileFromTheMeetingOn) {
  heard([&] {
    setenv("DDP_LOG_FILE", path("logs/{rank}.log").c_str(), 1);
    setenv("DDP_LOG_SUBSYS", "rings", 1);
    be_rank(3);
    log::info("met");
  });
  EXPECT_EQ(lines("logs/3.log"),
            (Lines{"warn rank 3: DDP_LOG_SUBSYS: \"rings\" is ignored: it must be init, coll, bucket or all, separated "
                   "by commas",
                   "info rank 3: met"}));
  EXPECT_EQ(heard_lines([&] {
              setenv("DDP_LOG_FILE", path("run.log").c_str(), 1);
              log::info("nobody knows the rank");
              be_rank(0);
              log::info("met");
            }),
            (Lines{"info rank 0: nobody knows the rank", "info rank 0: met"}));
  EXPECT_EQ(lines("run.log"), (Lines{"info rank 0: met"}));
}

TEST_F(LogToFile, AVariableThatCannotBeHadIsReportedAndIgnored) {
  const auto speak = [&](const char* level) {
    return heard_lines([&, level] {
      setenv("DDP_LOG_LEVEL", level, 1);
      setenv("DDP_LOG_FILE", "/proc/none/{rank}.log", 1);
      be_rank(1);
      log::all.error("on we go");
    });
  };
  EXPECT_EQ(speak("warn"), (Lines{"warn rank 1: DDP_LOG_FILE=/proc/none/{rank}.log is ignored: the folder "
                                  "\"/proc/none\" cannot be made: No such file or directory",
                                  "error rank 1: on we go"}));
  EXPECT_EQ(speak("error"), (Lines{"error rank 1: on we go"}));
}

TEST_F(LogToFile, TheProgramsWordWinsOverTheVariableAlsoAtALaterMeeting) {
  heard([&] {
    setenv("DDP_LOG_FILE", path("variable.log").c_str(), 1);
    be_rank(0);
    log::to_file(path("program{rank}.log"));
    log::info("1");
    be_rank(0);
    log::info("2");
    be_rank(1);
    log::info("3");
  });
  EXPECT_EQ(text("variable.log"), "");
  EXPECT_EQ(lines("program0.log"), (Lines{"info rank 0: 1", "info rank 0: 2"}));
  EXPECT_EQ(lines("program1.log"), (Lines{"info rank 1: 3"}));
}

TEST_F(LogToFile, RankZerosFileIsClosedWhenTheProcessIsAnotherRank) {
  heard([&] {
    be_rank(0);
    log::to_file(path("run.log"));
    be_rank(1);
    log::all.info("not rank 0's");
  });
  EXPECT_EQ(text("run.log"), "");
}

TEST_F(LogToFile, ARankWithoutAFileDoesNotWriteThatOfItsFormerRank) {
  overwrite(path("1"), "no folder");
  EXPECT_EQ(heard_lines([&] {
              be_rank(0);
              log::to_file(path("{rank}/run.log"));
              be_rank(1);
              log::all.info("on we go");
            }),
            (Lines{"warn rank 1: log::to_file(\"" + path("{rank}/run.log") + "\") is ignored: the file \"" +
                       path("1/run.log") + "\" cannot be opened: Not a directory",
                   "info rank 1: on we go"}));
  EXPECT_EQ(text("0/run.log"), "");
}

TEST_F(LogToFile, AFullDiskIsSaidOnceAndTheProgramGoesOn) {
  EXPECT_EQ(heard_lines([] {
              be_rank(0);
              log::to_file("/dev/full");
              log::info("1");
              log::info("2");
            }),
            (Lines{"info rank 0: 1",
                   "error rank 0: log: lines are missing in \"/dev/full\", which could not be written: No space left "
                   "on device",
                   "info rank 0: 2"}));
}

/// What is left of the signals that a failed write raises.
void print_pending_signals() {
  sigset_t pending;
  sigpending(&pending);
  for (const int signal : {SIGXFSZ, SIGPIPE}) {
    if (sigismember(&pending, signal)) dprintf(STDERR_FILENO, "time signal %d is pending\n", signal);
  }
}

TEST_F(LogToFile, BeyondTheLimitOfAFilesSizeNobodyDiesAndLaterLinesAreWhole) {
  const auto limit_file_size = [](rlim_t bytes) {
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = std::min(bytes, limit.rlim_max);
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const auto shown = heard_lines([&] {
    be_rank(0);
    log::to_file(path("run.log"));
    limit_file_size(100);
    for (int i = 0; i < 4; ++i) log::info("{}", std::string(20, 'x'));
    print_pending_signals();
    limit_file_size(1000);
    log::info("room again");
  });
  const auto x = "info rank 0: " + std::string(20, 'x');
  EXPECT_EQ(shown, (Lines{x, x,
                          "error rank 0: log: lines are missing in \"" + path("run.log") +
                              "\", which could not be written: File too large",
                          x, x, "info rank 0: room again"}));
  const auto written = lines("run.log");
  ASSERT_EQ(written.size(), 3U) << text("run.log");
  EXPECT_EQ(written[0], x);
  EXPECT_EQ(written[1], x.substr(0, written[1].size()));
  EXPECT_EQ(written[2], "info rank 0: room again");
}

TEST_F(LogToFile, APipeWithoutAReaderKillsNobody) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(heard_lines([&] {
              be_rank(0);
              const int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
              log::to_file(path("pipe"));
              close(reader);
              log::info("1");
              print_pending_signals();
              print_error<ConfigError>([&] { log::to_file(path("pipe")); });
            }),
            (Lines{"info rank 0: 1",
                   "error rank 0: log: lines are missing in \"" + path("pipe") +
                       "\", which could not be written: Broken pipe",
                   "rank 0 of 4: log::to_file: the file \"" + path("pipe") +
                       "\" cannot be opened: No such device or address; give a path where this process may write"}));
}

TEST_F(LogToFile, APipeWhoseReaderIsSlowGetsAllLines) {
  constexpr int kLines = 200;
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const auto shown = heard_lines([&] {
    be_rank(0);
    const int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
    fcntl(reader, F_SETFL, 0);
    fcntl(reader, F_SETPIPE_SZ, PIPE_BUF);
    log::to_file(path("pipe"));
    std::thread slow([&] {
      std::size_t ends = 0;
      for (char byte = 0; ends < kLines && read(reader, &byte, 1) == 1;) ends += byte == '\n' ? 1 : 0;
      dprintf(STDERR_FILENO, "time all read\n");
    });
    for (int i = 0; i < kLines; ++i) log::info("{}", std::string(100, 'x'));
    log::to_file(path("another"));  // which is the end of the pipe
    slow.join();
  });
  EXPECT_EQ(shown.size(), kLines + 1U);
}

TEST_F(LogToFile, LinesOfSeveralThreadsAndJobsInOneFileNeverInterleave) {
  constexpr int kJobs = 4, kThreads = 2, kLines = 300;
  const auto text_of = [](int length) { return std::string(static_cast<std::size_t>(length), 'a') + "."; };
  const auto shown = heard(
      [&] {
        be_rank(0);
        log::to_file(path("run.log"));
        const auto speak = [&] {
          for (int i = 0; i < kLines; ++i) log::info("{}", text_of(i * 11));
        };
        std::thread other(speak);
        speak();
        other.join();
      },
      kJobs);
  EXPECT_EQ(lines_of(shown).size(), static_cast<std::size_t>(kLines * kJobs * kThreads));
  std::map<std::string, int> count;
  for (const auto& line : lines("run.log")) ++count[line];
  ASSERT_EQ(count.size(), static_cast<std::size_t>(kLines)) << "a line was torn";
  for (int i = 0; i < kLines; ++i) EXPECT_EQ(count["info rank 0: " + text_of(i * 11)], kJobs * kThreads);
}

TEST_F(LogToFile, NoLineIsLostWhileTheFileChanges) {
  constexpr int kLines = 500;
  const auto shown = heard([&] {
    be_rank(0);
    log::to_file(path("a.log"));
    std::atomic<bool> done = false;
    std::thread speaker([&] {
      for (int i = 0; i < kLines; ++i) log::info("{}", i);
      done = true;
    });
    while (!done) {
      log::to_file(path("b.log"));
      log::to_file(path("a.log"));
    }
    speaker.join();
  });
  EXPECT_EQ(lines_of(shown).size(), static_cast<std::size_t>(kLines));
  EXPECT_EQ(lines("a.log").size() + lines("b.log").size(), static_cast<std::size_t>(kLines));
}

TEST_F(LogToFile, RanksThatMakeOneFolderAtATimeAllSucceed) {
  constexpr int kRanks = 4, kRounds = 50;
  const Shared<std::atomic<int>> arrivals;
  EXPECT_EQ(heard_from(kRanks,
                       [&](int rank) {
                         be_rank(rank);
                         for (int round = 0; round < kRounds; ++round) {
                           *arrivals += 1;
                           while (*arrivals < (round + 1) * kRanks) std::this_thread::yield();
                           log::to_file(path("run" + std::to_string(round) + "/a/b/c/rank{rank}.log"));
                           log::info("{}", round);
                         }
                       })
                .find("error"),
            std::string::npos);
  for (int round = 0; round < kRounds; ++round) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto name = "run" + std::to_string(round) + "/a/b/c/rank" + std::to_string(rank) + ".log";
      EXPECT_EQ(lines(name), (Lines{"info rank " + std::to_string(rank) + ": " + std::to_string(round)}));
    }
  }
}

TEST_F(LogToFile, AVariableThatNamesNoFileIsComplainedOfOnce) {
  const auto shown = heard([&] {
    setenv("DDP_LOG_FILE", "/proc/none/run.log", 1);
    be_rank(0);
    log::set_identity({.rank = 0, .world_size = 4, .host = "node7"});
  });
  EXPECT_EQ(count(shown, "DDP_LOG_FILE"), 1) << shown;
}

TEST_F(LogToFile, AnotherWordInBracesIsAnError) {
  const auto shown = heard([&] {
    be_rank(0);
    print_error<ConfigError>([&] { log::to_file(path("{rnak}.log")); });
  });
  EXPECT_TRUE(contains(shown, "has {rnak}, but only {rank} is known"));
  EXPECT_TRUE(files().empty());
}

}  // namespace
}  // namespace ddp::testing
