#include "ddp/log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "unit/log_heard.hpp"

namespace {
struct Grumpy {};
}  // namespace

template <>
struct fmt::formatter<Grumpy> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  auto format(const Grumpy&, format_context& context) const -> format_context::iterator {
    if (context.args().max_size() >= 0) throw std::runtime_error("not today");
    return context.out();
  }
};

namespace ddp {
namespace {

using testing::heard;
using testing::heard_lines;
using testing::Lines;
using testing::lines_of;

std::string utc_now() {
  // Not std::time(), whose clock is some milliseconds behind.
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return text;
}

TEST(Log, LineHasUtcTimeToTheMillisecondLevelAndRank) {
  const auto before = utc_now();
  const auto line = heard([] {
    setenv("TZ", "Asia/Tokyo", 1);
    log::info("epoch {} loss {:.4f}", 3, 0.41268);
  });
  const auto after = utc_now();
  // 2026-11-29T17:40:01.123Z
  ASSERT_GT(line.size(), 24u);
  EXPECT_LE(before, line.substr(0, 19));
  EXPECT_LE(line.substr(0, 19), after);
  EXPECT_EQ(line[19], '.');
  EXPECT_EQ(line.substr(20, 3).find_first_not_of("0123456789"), std::string::npos);
  EXPECT_EQ(line.substr(23), "Z info rank 0: epoch 3 loss 0.4127\n");
}

TEST(Log, RankZeroSpeaksUnlessOthersAreAsked) {
  EXPECT_EQ(heard_lines([] {
              log::set_identity({.rank = 1, .world_size = 3});
              log::warn("rank 0 alone");
              log::all.warn("everyone");
              log::only(1).warn("this one");
              log::only(2).warn("another");
            }),
            (Lines{"warn rank 1: everyone", "warn rank 1: this one"}));
}

TEST(Log, NamesTheHostWhereTheJobSpansSeveral) {
  EXPECT_EQ(heard_lines([] {
              log::set_identity({.rank = 0, .world_size = 2, .host = "node7"});
              log::error("disk is full");
            }),
            (Lines{"error rank 0 node7: disk is full"}));
}

Lines four_levels(const char* level) {
  return heard_lines([level] {
    if (level) setenv("DDP_LOG_LEVEL", level, 1);
    log::debug("d");
    log::info("i");
    log::warn("w");
    log::error("e");
  });
}

TEST(Log, LevelVariableSetsTheLeastLevelShown) {
  EXPECT_EQ(four_levels(nullptr), (Lines{"info rank 0: i", "warn rank 0: w", "error rank 0: e"}));
  EXPECT_EQ(four_levels("debug"), (Lines{"debug rank 0: d", "info rank 0: i", "warn rank 0: w", "error rank 0: e"}));
  EXPECT_EQ(four_levels("info"), four_levels(nullptr));
  EXPECT_EQ(four_levels("warn"), (Lines{"warn rank 0: w", "error rank 0: e"}));
  EXPECT_EQ(four_levels("error"), (Lines{"error rank 0: e"}));
  EXPECT_EQ(four_levels("off"), Lines{});
}

TEST(Log, ABadLevelIsReportedOnceAndIgnored) {
  EXPECT_EQ(four_levels("verbose"),
            (Lines{"warn rank 0: DDP_LOG_LEVEL=verbose is ignored: it must be debug, info, warn, error or off",
                   "info rank 0: i", "warn rank 0: w", "error rank 0: e"}));
}

Lines three_subsystems(const char* names) {
  return heard_lines([names] {
    setenv("DDP_LOG_SUBSYS", names, 1);
    log::set_identity({.rank = 1, .world_size = 2});
    log::detail(log::Subsystem::init, "a{}", 1);
    log::detail(log::Subsystem::coll, "b{}", 2);
    log::detail(log::Subsystem::bucket, "c{}", 3);
  });
}

TEST(Log, PartsSpeakOnEveryRankWhenTheyAreNamed) {
  EXPECT_EQ(three_subsystems(""), Lines{});
  EXPECT_EQ(three_subsystems("coll"), (Lines{"debug rank 1: coll: b2"}));
  EXPECT_EQ(three_subsystems("bucket,init"), (Lines{"debug rank 1: init: a1", "debug rank 1: bucket: c3"}));
  EXPECT_EQ(three_subsystems("all"),
            (Lines{"debug rank 1: init: a1", "debug rank 1: coll: b2", "debug rank 1: bucket: c3"}));
}

TEST(Log, ABadPartIsReportedByRankZeroAndTheOthersCount) {
  const auto speak = [](int rank) {
    return heard_lines([rank] {
      setenv("DDP_LOG_SUBSYS", "coll,rings", 1);
      log::set_identity({.rank = rank, .world_size = 2});
      log::detail(log::Subsystem::coll, "seen");
    });
  };
  EXPECT_EQ(speak(1), (Lines{"debug rank 1: coll: seen"}));
  EXPECT_EQ(speak(0), (Lines{"warn rank 0: DDP_LOG_SUBSYS: \"rings\" is ignored: it must be init, coll, bucket or all, "
                             "separated by commas",
                             "debug rank 0: coll: seen"}));
}

TEST(Log, AThrowingFormatterGivesAnErrorLineAndTrainingGoesOn) {
  EXPECT_EQ(heard_lines([] {
              log::info("mood: {}", Grumpy{});
              log::info("still here");
            }),
            (Lines{"error rank 0: log: the message \"mood: {}\" could not be formatted: not today",
                   "info rank 0: still here"}));
}

TEST(Log, EveryLineOfAMessageGetsThePrefix) {
  EXPECT_EQ(heard_lines([] { log::info("one\n\nthree\n"); }),
            (Lines{"info rank 0: one", "info rank 0: ", "info rank 0: three"}));
}

TEST(Log, AnEmptyMessageIsALine) {
  EXPECT_EQ(heard_lines([] { log::info(""); }), (Lines{"info rank 0: "}));
}

TEST(Log, ALongLineGoesOnInTheNextOneWithoutCuttingCharacters) {
  std::string message;
  for (int i = 0; i < 9000; ++i) message += i % 3 ? "\u00e4" : "x";
  const auto lines = lines_of(heard([&] { log::info("{}", message); }));
  ASSERT_GT(lines.size(), 1u);
  std::string joined;
  for (const auto& line : lines) {
    EXPECT_LT(line.size(), static_cast<std::size_t>(PIPE_BUF));
    auto text = line.substr(line.find("rank 0: ") + 8);
    if (!joined.empty()) {
      EXPECT_EQ(text.substr(0, 4), "... ");
      text.erase(0, 4);
    }
    EXPECT_NE(text.front() & 0xC0, 0x80) << "starts in the middle of a character";
    joined += text;
  }
  EXPECT_EQ(joined, message);
}

TEST(Log, LinesOfSeveralThreadsAndProcessesNeverInterleave) {
  constexpr int kProcesses = 4, kThreads = 2, kLines = 300;
  const auto text_of = [](int length) { return std::string(static_cast<std::size_t>(length), 'a') + "."; };
  const auto text = heard(
      [&] {
        const auto speak = [&] {
          for (int i = 0; i < kLines; ++i) log::info("{}", text_of(i * 11));
        };
        std::thread other(speak);
        speak();
        other.join();
      },
      kProcesses);
  std::map<std::string, int> count;
  const std::string prefix = "Z info rank 0: ";
  for (const auto& line : lines_of(text))
    ++count[line.substr(std::min(line.size(), line.find(prefix) + prefix.size()))];
  ASSERT_EQ(count.size(), static_cast<std::size_t>(kLines)) << "a line was torn";
  for (int i = 0; i < kLines; ++i) EXPECT_EQ(count[text_of(i * 11)], kProcesses * kThreads);
}

TEST(Log, AClosedStandardErrorIsNoError) {
  EXPECT_EQ(heard([] {
              close(STDERR_FILENO);
              log::error("nobody hears this");
            }),
            "");
}

TEST(LogEvery, HasItsTurnAtTheFirstCallAndAtEachNthAfterIt) {
  EXPECT_EQ(heard([] {
              for (int i = 0; i <= 100; ++i) {
                if (log::every(50)) dprintf(STDERR_FILENO, "%d ", i);
              }
            }),
            "0 50 100 ");
}

TEST(LogEvery, EachPlaceInTheSourceCountsByItself) {
  // Not among a macro's arguments: to the compiler they are one place.
  const auto speak = [] {
    const auto show = [](int call, bool first, bool second) {
      dprintf(STDERR_FILENO, "%d%s%s ", call, first ? " first" : "", second ? " second" : "");
    };
    for (int i = 0; i < 4; ++i) show(i, bool(log::every(2)), i > 0 && log::every(2));
  };
  EXPECT_EQ(heard(speak), "0 first 1 second 2 first 3 second ");
}

TEST(LogEvery, CallsCountAlikeOnRanksThatShowNothing) {
  EXPECT_EQ(heard([] {
              setenv("DDP_LOG_LEVEL", "off", 1);
              log::set_identity({.rank = 1, .world_size = 2});
              int turns = 0;
              for (int i = 0; i < 101; ++i) turns += log::every(50) ? 1 : 0;
              if (turns != 3) dprintf(STDERR_FILENO, "%d turns", turns);
            }),
            "");
}

TEST(LogEvery, SpeaksOnRankZeroAtEachLevel) {
  const auto speak = [](int rank) {
    return heard_lines([rank] {
      setenv("DDP_LOG_LEVEL", "debug", 1);
      log::set_identity({.rank = rank, .world_size = 2});
      for (int i = 0; i < 3; ++i) {
        log::every(2).debug("d{}", i);
        log::every(2).info("i{}", i);
        log::every(3).warn("w{}", i);
        log::every(3).error("e{}", i);
      }
    });
  };
  EXPECT_EQ(speak(0), (Lines{"debug rank 0: d0", "info rank 0: i0", "warn rank 0: w0", "error rank 0: e0",
                             "debug rank 0: d2", "info rank 0: i2"}));
  EXPECT_EQ(speak(1), Lines{});
}

TEST(LogEvery, ThreadsShareACount) {
  constexpr int kThreads = 4, kCalls = 1000;
  std::atomic<int> turns = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int call = 0; call < kCalls; ++call) turns += log::every(10) ? 1 : 0;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(turns, kThreads * kCalls / 10);
}

TEST(LogEvery, LessThanOneCallIsALogicError) {
  for (const int calls : {0, -1}) {
    try {
      (void)log::every(calls);
      ADD_FAILURE() << "every(" << calls << ") was taken";
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), "log::every(" + std::to_string(calls) + "): the number of calls must be at least 1");
    }
  }
}

}  // namespace
}  // namespace ddp
