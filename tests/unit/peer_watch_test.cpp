#include "comm/peer_watch.hpp"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "comm/watch_questions.hpp"
#include "ddp/error.hpp"
#include "peer_watch_fixture.hpp"

namespace ddp::comm {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;
using testing::contains;
using testing::kLimit;
using testing::RecordedLink;
using testing::World;

std::string refusal(const WatchLink::Options& options) {
  try {
    WatchLink link(options, {});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "was let in";
}

TEST(PeerWatch, TellsEveryRankTheRaisedTextOnce) {
  World world(3);
  world[1]->report(Failure::Kind::raised, "out of memory in step 7");
  const Failure failure = world.common_failure();
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.kind, Failure::Kind::raised);
  EXPECT_EQ(failure.text, "out of memory in step 7");
}

TEST(PeerWatch, NamesARankThatClosesWithoutAGoodbye) {
  World world(3);
  world[2].destroy();
  const Failure failure = world.common_failure(2);
  EXPECT_EQ(failure.rank, 2);
  EXPECT_EQ(failure.kind, Failure::Kind::lost);
  EXPECT_TRUE(contains(failure.text, "without a goodbye"));
}

TEST(PeerWatch, TheTextOfARankThatRaisesAndEndsIsTheOneFailure) {
  World world(3);
  world[1]->report(Failure::Kind::raised, "first");
  world[1].destroy();
  world[2]->report(Failure::Kind::raised, "second");
  EXPECT_EQ(world.common_failure(1).text, "first");
}

TEST(PeerWatch, OnlyTheFirstReportOfARankCounts) {
  World world(2);
  world[1]->report(Failure::Kind::raised, "first");
  world[1]->report(Failure::Kind::raised, "second");
  EXPECT_EQ(world.common_failure().text, "first");
}

TEST(PeerWatch, AGoodbyeIsNoFailureAndSaysTheLastCall) {
  World world(3);
  world[2]->leave(41);
  world[2].destroy();
  world[1]->leave(42);
  EXPECT_EQ(world[0].left(2), (std::map<int, std::uint64_t>{{1, 42}, {2, 41}}));
  EXPECT_EQ(world[1].left(1), (std::map<int, std::uint64_t>{{2, 41}}));
  EXPECT_EQ(world[0].failure_count(), 0u);
}

TEST(PeerWatch, ARankThatHasLeftHearsOfNoFailure) {
  World world(3);
  world[2]->leave(1);
  world[1]->report(Failure::Kind::raised, "late");
  EXPECT_EQ(world.common_failure(2).rank, 1);
  static_cast<void>(world[2]->ask_all(kLimit));  // its answers come after the failure on the same connection
  EXPECT_EQ(world[2].failure_count(), 0u);
}

TEST(PeerWatch, AnEchoWaitsForTheRealCause) {
  World world(4);
  std::thread echo([&] { world[0]->report(Failure::Kind::echo, "connection closed by peer"); });
  std::thread raise([&] { world[2]->report(Failure::Kind::raised, "assertion failed"); });
  EXPECT_EQ(world.common_failure().text, "assertion failed");
  echo.join();
  raise.join();
}

TEST(PeerWatch, AnEchoThatFollowsTheCauseChangesNothing) {
  World world(3);
  world[2].destroy();
  world[1]->report(Failure::Kind::echo, "connection closed by peer");
  EXPECT_EQ(world.common_failure(2).rank, 2);
}

TEST(PeerWatch, AnEchoAloneIsTheCauseAfterItsWait) {
  World world(3, -1, 20ms);
  world[1]->report(Failure::Kind::echo, "connection closed by peer");
  const Failure failure = world.common_failure();
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.kind, Failure::Kind::echo);
}

TEST(PeerWatch, ReportingAnEchoReturnsOnlyWhenTheOthersHaveBeenTold) {
  World world(2, -1, 20ms);
  world[0]->report(Failure::Kind::echo, "connection closed by peer");
  world.destroy_hub();  // as a process that ends right after its report
  EXPECT_EQ(world[1].failure().text, "connection closed by peer");
}

TEST(PeerWatch, TheEndOfTheHubSettlesAnOpenEcho) {
  World world(2);
  world[1]->report(Failure::Kind::echo, "connection closed by peer");  // undecided: returns after its limit
  EXPECT_EQ(world[0].failure_count(), 0u);
  world.destroy_hub();
  EXPECT_EQ(world[0].failure().rank, 1);
}

TEST(PeerWatch, ALateRankHearsOfTheCauseAndOfThoseWhoLeft) {
  World world(4, 3);
  world[1]->leave(5);
  world[2]->report(Failure::Kind::raised, "early");
  RecordedLink& late = world.join(3);
  EXPECT_EQ(late.failure().text, "early");
  EXPECT_EQ(late.left(1), (std::map<int, std::uint64_t>{{1, 5}}));
}

TEST(PeerWatch, AHubThatClosesInOrderIsNoFailure) {
  World world(3);
  world.destroy_hub();
  EXPECT_EQ(world[1]->ask_all(kLimit), (Lines{"", "line 1", ""}));  // ends at once: the hub has gone
  EXPECT_EQ(world[1].failure_count(), 0u);
  world[1]->report(Failure::Kind::raised, "nobody hears this");
  world[1]->leave(3);
}

TEST(PeerWatch, TheHubKnowsWhenAllHaveLeft) {
  World world(3);
  world[0]->leave(1);
  world[1].destroy();
  EXPECT_FALSE(world.hub().wait_all_left(1ms));
  world[2]->leave(1);
  EXPECT_TRUE(world.hub().wait_all_left(kLimit));
}

TEST(PeerWatch, AskAllCollectsEveryRanksLine) {
  World world(4, 3);
  world[2]->leave(0);
  world[2].destroy();
  world[0].left(1);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(world[1]->ask_all(kLimit), (Lines{"line 0", "line 1", "", ""}));
  EXPECT_LT(std::chrono::steady_clock::now() - before, kLimit / 2) << "waited for ranks that cannot answer";
}

TEST(PeerWatch, SeveralAskAtTheSameTime) {
  World world(4);
  std::vector<std::thread> askers;
  for (int i = 0; i < 8; ++i) {
    askers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        EXPECT_EQ(world[i % 4]->ask_all(kLimit), (Lines{"line 0", "line 1", "line 2", "line 3"}));
      }
    });
  }
  for (auto& asker : askers) asker.join();
}

TEST(PeerWatch, ARankThatDoesNotAnswerInTimeGivesAnEmptyLine) {
  World world(3, 2);
  std::promise<void> release;
  RecordedLink stuck(world.options(2), [waits = release.get_future().share()] {
    waits.wait();
    return std::string("late");
  });
  EXPECT_EQ(world[0]->ask_all(50ms), (Lines{"line 0", "line 1", ""}));
  release.set_value();
  EXPECT_EQ(world[0]->ask_all(kLimit), (Lines{"line 0", "line 1", "late"}));
}

TEST(PeerWatch, OfARankThatIsKnownToBeHeldNoAnswerIsWaitedFor) {
  World world(3, 2);
  std::promise<void> release;
  RecordedLink stuck(world.options(2), [waits = release.get_future().share()] {
    waits.wait();
    return std::string("late");
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(world[0]->ask_all({}, kLimit, {false, false, true}), (Lines{"line 0", "line 1", ""}));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLimit / 2);
  release.set_value();
}

TEST(PeerWatch, AReportIsAskedForTheCallThatTheAskerWaitsIn) {
  World world(3, 2);
  const auto about_7 = world[1]->ask_all({Question::Kind::report, 7, 0}, kLimit);
  EXPECT_EQ(about_7, (Lines{"report about 7", "report about 7", ""}));
}

TEST(PeerWatch, LinesAndReportsThatAreAskedForAtOnceAreNotMixedUp) {
  World world(3);
  std::vector<std::thread> askers;
  for (int i = 0; i < 6; ++i) {
    askers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        if (i % 2 == 0)
          EXPECT_EQ(world[i % 3]->ask_all(kLimit), (Lines{"line 0", "line 1", "line 2"}));
        else
          EXPECT_EQ(world[i % 3]->ask_all({Question::Kind::report, 3, 0}, kLimit).value().at(2), "report about 3");
      }
    });
  }
  for (auto& asker : askers) asker.join();
}

TEST(PeerWatch, ReportsAboutSeveralCallsAreNotMixedUp) {
  World world(4);
  std::vector<std::thread> askers;
  for (int i = 0; i < 4; ++i) {
    askers.emplace_back([&, i] {
      const auto call = static_cast<std::uint64_t>(i);
      for (int repeat = 0; repeat < 50; ++repeat) {
        const auto reports = world[i]->ask_all({Question::Kind::report, call, 0}, kLimit);
        EXPECT_EQ(reports, Lines(4, "report about " + std::to_string(call)));
      }
    });
  }
  for (auto& asker : askers) asker.join();
}

TEST(PeerWatch, OneOfTheRanksThatWaitAsksForAllInATurn) {
  World world(3);
  EXPECT_TRUE(world[1]->ask_all({Question::Kind::report, 7, 1}, kLimit));
  EXPECT_FALSE(world[2]->ask_all({Question::Kind::report, 7, 1}, kLimit));
  EXPECT_TRUE(world[2]->ask_all({Question::Kind::report, 7, 0}, kLimit)) << "without a turn everybody may";
  EXPECT_TRUE(world[1]->ask_all({Question::Kind::report, 7, 1}, kLimit)) << "whose turn it is may again";
  EXPECT_TRUE(world[2]->ask_all({Question::Kind::status, 7, 1}, kLimit)) << "lines have turns of their own";
  EXPECT_TRUE(world[2]->ask_all({Question::Kind::report, 7, 2}, kLimit)) << "the next turn is anybody's";
  EXPECT_FALSE(world[1]->ask_all({Question::Kind::report, 7, 1}, kLimit)) << "that one is over";
  EXPECT_TRUE(world[0]->ask_all({Question::Kind::report, 8, 1}, kLimit)) << "so is the next call";
  EXPECT_FALSE(world[1]->ask_all({Question::Kind::report, 7, 3}, kLimit)) << "that one is over";
}

TEST(WatchTurns, PassOnWhereTheirRankHasFallenSilent) {
  watch::WatchTurns turns;
  const auto now = std::chrono::steady_clock::now();
  const Question lines{Question::Kind::status, 7, 1}, reports{Question::Kind::report, 7, 1};
  EXPECT_TRUE(turns.take(1, lines, now));
  EXPECT_FALSE(turns.take(2, lines, now + Question::kTurn - 1ms));
  EXPECT_TRUE(turns.take(1, lines, now + 1s));
  EXPECT_FALSE(turns.take(2, lines, now + Question::kTurn)) << "it has asked since";
  EXPECT_TRUE(turns.take(2, lines, now + 1s + Question::kTurn));
  EXPECT_TRUE(turns.take(1, reports, now));
  EXPECT_FALSE(turns.take(2, reports, now + 1000 * Question::kTurn)) << "a report is made once";
}

TEST(PeerWatch, LongTextsAreCutWithAMark) {
  World world(2);
  world[1]->report(Failure::Kind::raised, std::string(1 << 20, 'x'));
  const std::string text = world.common_failure().text;
  EXPECT_EQ(text.size(), 64u * 1024u);
  EXPECT_EQ(text.substr(text.size() - 13), "xxx [... cut]");
}

TEST(PeerWatch, ManyRanksInOneProcessAreAllTold) {
  World world(64);
  EXPECT_EQ(world[63]->ask_all(kLimit).at(17), "line 17");
  world[40].destroy();
  EXPECT_EQ(world.common_failure(40).rank, 40);
}

TEST(PeerWatch, ManyRanksLeaveInAnyOrder) {
  World world(64);
  std::vector<std::thread> leavers;
  for (int first = 0; first < 4; ++first) {
    leavers.emplace_back([&, first] {
      for (int rank = 63 - first; rank >= 0; rank -= 4) world[rank]->leave(9);
    });
  }
  for (auto& leaver : leavers) leaver.join();
  EXPECT_TRUE(world.hub().wait_all_left(kLimit));
  for (int rank = 0; rank < 64; ++rank) EXPECT_EQ(world[rank].failure_count(), 0u);
}

TEST(PeerWatch, ReportsFromManyThreadsAndRanksAgreeOnOneCause) {
  World world(8);
  std::vector<std::thread> reporters;
  for (int i = 0; i < 16; ++i) {
    reporters.emplace_back([&, i] { world[i % 8]->report(Failure::Kind::raised, "thread " + std::to_string(i)); });
  }
  for (auto& reporter : reporters) reporter.join();
  EXPECT_TRUE(contains(world.common_failure().text, "thread "));
}

TEST(PeerWatch, AReportFromACallbackIsHandedOver) {
  World world(3, 2);
  WatchLink* link = nullptr;
  std::promise<void> ready;
  WatchLink third(world.options(2), {.status = [&link, waits = ready.get_future().share()] {
                    waits.wait();
                    link->report(Failure::Kind::raised, "from a callback");
                    return std::string("reported");
                  }});
  link = &third;
  ready.set_value();
  EXPECT_EQ(world[0]->ask_all(kLimit)[2], "reported");
  EXPECT_EQ(world.common_failure().text, "from a callback");
}

TEST(PeerWatch, TurnsAnotherJobsRankAway) {
  World world(2, 1);
  auto options = world.options(1);
  options.token = "job 8";
  EXPECT_TRUE(contains(refusal(options),
                       "rank 1 of 2: peer watch: rank 0 turned this rank away: its token is that of another job"));
}

TEST(PeerWatch, NamesTheRankThatComesTwice) {
  World world(2);
  EXPECT_TRUE(contains(refusal(world.options(1)), "rank 1 came twice: first "));
  EXPECT_EQ(world[0]->ask_all(kLimit)[1], "line 1");
}

TEST(PeerWatch, NamesARankWithAnotherWorldSize) {
  World world(2, 1);
  auto options = world.options(1);
  options.world_size = 3;
  EXPECT_TRUE(contains(refusal(options), "says that the world has 3 ranks, rank 0 says 2"));
  options = world.options(2);
  EXPECT_TRUE(contains(refusal(options), "rank 2 is none of a world of 2"));
}

TEST(PeerWatch, SaysWhereNobodyListens) {
  std::uint16_t port = 0;
  {
    World world(1);
    port = world.hub().port();
  }
  WatchLink::Options options{.host = "127.0.0.1", .port = port, .connect_timeout = 50ms};
  EXPECT_TRUE(contains(refusal(options), "cannot reach rank 0 at 127.0.0.1:" + std::to_string(port)));
  options.host = "nonexistent.invalid";
  EXPECT_TRUE(contains(refusal(options), "nonexistent.invalid"));
}

TEST(PeerWatch, ListensOnBothFamiliesForSeveralHosts) {
  WatchHub hub({.world_size = 2, .token = "t", .loopback_only = false});
  const std::string any_host[] = {"localhost", "127.0.0.1"};
  std::vector<std::unique_ptr<WatchLink>> links;
  for (int rank = 0; rank < 2; ++rank) {
    links.push_back(std::make_unique<WatchLink>(
        WatchLink::Options{.host = any_host[rank], .port = hub.port(), .rank = rank, .world_size = 2, .token = "t"},
        WatchEvents{}));
  }
  EXPECT_EQ(links[0]->ask_all(kLimit), (Lines{"", ""}));
  for (auto& link : links) link->leave(0);
  EXPECT_TRUE(hub.wait_all_left(kLimit));
}

}  // namespace
}  // namespace ddp::comm
