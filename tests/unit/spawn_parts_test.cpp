// The parts of ddp::spawn() that need no LibTorch.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

#include "start/rank_environment.hpp"
#include "start/spawn_calls.hpp"
#include "start/spawn_report.hpp"
#include "start/spawn_ticket.hpp"
#include "start/spawned_ranks.hpp"

namespace ddp::start {
namespace {

using namespace std::chrono_literals;
using Stage = SpawnHeard::Stage;

struct Pipe {
  Descriptor read_end, write_end;
};

Pipe open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// A child that does `what` with its report, and leaves with 0.
void add_rank(SpawnedRanks& ranks, int number, const std::function<void(const SpawnReport&)>& what) {
  auto pipe = open_pipe();
  const pid_t pid = ::fork();
  if (pid == 0) {
    what(SpawnReport(pipe.write_end.release()));
    ::_exit(0);
  }
  ranks.add(number, pid, std::move(pipe.read_end));
}

TEST(SpawnCalls, CountsEachPlaceByItself) {
  SpawnCalls calls;
  EXPECT_EQ(calls.begin(7), 1);
  EXPECT_EQ(calls.begin(8), 1);
  calls.end(7, {.how = SpawnPast::How::rank_failed, .rank = 3});
  EXPECT_EQ(calls.begin(7), 2);
  const auto ended = calls.ended();
  ASSERT_EQ(ended.at(7).size(), 1U);
  EXPECT_EQ(ended.at(7)[0].rank, 3);
  EXPECT_TRUE(ended.at(8).empty());
}

TEST(SpawnCalls, RefusesASecondOneFromThePlaceOfOneThatHasNotEnded) {
  SpawnCalls calls;
  calls.begin(7);
  EXPECT_EQ(calls.begin(7), 0);
  calls.end(7, {});
  EXPECT_EQ(calls.begin(7), 2);
}

TEST(SpawnCalls, APlaceIsALine) {
  const auto here = std::source_location::current();
  const auto there = std::source_location::current();
  EXPECT_EQ(place_of(here), place_of(here));
  EXPECT_NE(place_of(here), place_of(there));
}

TEST(SpawnTicket, ComesBackFromItsText) {
  SpawnTicket ticket{.parent = 12, .local_rank = 3, .report = 9, .place = ~std::uint64_t{0}, .number = 2};
  ticket.ended[5] = {{SpawnPast::How::returned}, {SpawnPast::How::rank_failed, 2, -1, 11}};
  ticket.ended[6] = {};
  const auto read = SpawnTicket::parse(ticket.text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->text(), ticket.text());
  EXPECT_EQ(read->place, ticket.place);
  ASSERT_EQ(read->ended.at(5).size(), 2U);
  EXPECT_EQ(read->ended.at(5)[1].how, SpawnPast::How::rank_failed);
  EXPECT_EQ(read->ended.at(5)[1].signal, 11);
}

TEST(SpawnTicket, SenselessTextIsNone) {
  for (const auto* text :
       {"", "x", "1 2 3 4", "1 -1 9 5 1", "1 0 2 5 1", "1 0 9 5 0", "1 0 9 5 1 x", "1 0 9 5 1 5 1 0"})
    EXPECT_FALSE(SpawnTicket::parse(text)) << text;
}

TEST(SpawnTicket, IsTheProcesssOwnOnlyIfItsParentWroteIt) {
  SpawnTicket ticket{.parent = ::getppid(), .report = 9, .place = 1, .number = 1};
  ::setenv(SpawnTicket::kVariable, ticket.text().c_str(), 1);
  EXPECT_TRUE(SpawnTicket::of_this_process());
  ticket.parent = ::getpid();
  ::setenv(SpawnTicket::kVariable, ticket.text().c_str(), 1);
  EXPECT_FALSE(SpawnTicket::of_this_process());
  ::unsetenv(SpawnTicket::kVariable);
  EXPECT_FALSE(SpawnTicket::of_this_process());
}

TEST(SpawnHeard, KnowsTheStagesAndAnExceptionsFields) {
  SpawnHeard heard;
  EXPECT_EQ(heard.stage(), Stage::started);
  heard.add("B");
  EXPECT_EQ(heard.stage(), Stage::begun);
  auto done = heard;
  done.add("D");
  EXPECT_EQ(done.stage(), Stage::done);
  const std::string rest("T76\0int\0te\0xt", 13);
  for (const char byte : rest) heard.add({&byte, 1});  // as it may come
  EXPECT_EQ(heard.stage(), Stage::threw);
  EXPECT_EQ(heard.exit_code(), 76);
  EXPECT_EQ(heard.type(), "int");
  EXPECT_EQ(heard.text(), std::string("te\0xt", 5));
}

TEST(SpawnHeard, OfAnExceptionThatWasCutOffThereIsWhatHasCome) {
  SpawnHeard heard;
  heard.add("BT7");
  EXPECT_EQ(heard.exit_code(), 7);
  EXPECT_EQ(heard.type(), "");
  EXPECT_EQ(heard.text(), "");
}

TEST(SpawnReport, APipeWithoutAReaderIsNoError) {
  auto pipe = open_pipe();
  pipe.read_end.close();
  SpawnReport(pipe.write_end.release()).done();
}

TEST(SpawnedRanks, OfRanksThatAreDoneNoneHasFailed) {
  SpawnedRanks ranks(1s);
  for (int rank = 0; rank < 3; ++rank) {
    add_rank(ranks, rank, [](const SpawnReport& report) {
      report.begun();
      report.done();
    });
  }
  ranks.wait();
  EXPECT_EQ(ranks.first_failed(), nullptr);
}

TEST(SpawnedRanks, AnEchoThatIsHeardFirstIsNotTheFirstFailure) {
  SpawnedRanks ranks(1s);
  auto turn = open_pipe();
  add_rank(ranks, 0, [](const SpawnReport& report) {
    report.begun();
    report.threw(76, "ddp::PeerLostError", "rank 1 failed");
  });
  add_rank(ranks, 1, [&](const SpawnReport& report) {
    turn.write_end.close();
    char byte = 0;
    if (::read(turn.read_end.get(), &byte, 1) != 0) ::_exit(9);
    report.begun();
    report.threw(1, "std::runtime_error", std::string(300'000, 'x'));  // more than a pipe holds
  });
  turn.write_end.close();
  ranks.wait();
  ASSERT_NE(ranks.first_failed(), nullptr);
  EXPECT_EQ(ranks.first_failed()->rank, 1);
  EXPECT_EQ(ranks.first_failed()->heard.text().size(), 300'000U);
}

TEST(SpawnedRanks, ARankThatLeavesWithoutAWordHasFailed) {
  SpawnedRanks ranks(1s);
  add_rank(ranks, 0, [](const SpawnReport&) {});
  ranks.wait();
  ASSERT_NE(ranks.first_failed(), nullptr);
  EXPECT_EQ(ranks.first_failed()->process.status(), 0);
  EXPECT_EQ(ranks.first_failed()->heard.stage(), Stage::started);
}

TEST(SpawnedRanks, PatienceMayBeWithoutLimit) {
  SpawnedRanks ranks(std::chrono::milliseconds::max());
  auto turn = open_pipe();
  add_rank(ranks, 0, [](const SpawnReport&) { ::_exit(3); });
  add_rank(ranks, 1, [&](const SpawnReport&) {  // ends at SIGTERM
    turn.write_end.close();
    char byte = 0;
    while (::read(turn.read_end.get(), &byte, 1) != 0) {
    }
  });
  ranks.wait();
  EXPECT_EQ(ranks.first_failed()->rank, 0);
}

TEST(SpawnedRanks, ADestructorKillsWhatRuns) {
  auto alive = open_pipe();
  {
    SpawnedRanks ranks(1s);
    add_rank(ranks, 0, [&](const SpawnReport&) {
      alive.read_end.close();
      for (;;) ::pause();
    });
  }
  alive.write_end.close();
  char byte = 0;
  EXPECT_EQ(::read(alive.read_end.get(), &byte, 1), 0);  // nobody holds the other end any more
}

TEST(RankEnvironment, NumbersTheRanksOfSeveralNodes) {
  const Job job{.id = "j",
                .world_size = 6,
                .first_rank = 2,
                .ranks = 2,
                .nodes = 3,
                .node_rank = 1,
                .master_address = "node0",
                .master_port = 29500};
  const auto variables = rank_environment({}, job, 1);
  for (const auto* entry : {"RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=6", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",
                            "GROUP_WORLD_SIZE=3", "MASTER_ADDR=node0", "MASTER_PORT=29500"}) {
    EXPECT_EQ(std::ranges::count(variables, std::string(entry)), 1) << entry;
  }
}

}  // namespace
}  // namespace ddp::start
