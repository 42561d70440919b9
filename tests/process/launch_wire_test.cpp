// The launcher's pieces that need no processes: lines, cores, output plans, messages, and node 0's decisions.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

#include "ddp/error.hpp"
#include "launch/core_sets.hpp"
#include "launch/following_node.hpp"
#include "launch/leading_node.hpp"
#include "launch/line_splitter.hpp"
#include "launch/message.hpp"
#include "launch/node_words.hpp"
#include "launch/output_plan.hpp"

namespace ddp::launch {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

// --- lines

/// Updates have a '~' before them.
Lines split(const std::vector<std::string>& chunks, bool wants_updates = false) {
  Lines lines;
  LineSplitter splitter(wants_updates, [&](std::string_view text, bool update) {
    lines.push_back((update ? "~" : "") + std::string(text));
  });
  for (const auto& chunk : chunks) splitter.take(chunk);
  splitter.finish();
  return lines;
}

TEST(LineSplitter, GivesWholeLinesHoweverTheyCome) {
  EXPECT_EQ(split({"a\nb", "c\n\nd"}), (Lines{"a", "bc", "", "d"}));
  EXPECT_EQ(split({"a\rb\n"}), (Lines{"a\rb"}));
  EXPECT_EQ(split({""}), Lines{});
}

TEST(LineSplitter, AProgressBarsTextsReplaceOneAnother) {
  EXPECT_EQ(split({"\r10 %\r", "\r20 %\r\r30 %\n", "end\n"}, true), (Lines{"~10 %", "~20 %", "30 %", "end"}));
  EXPECT_EQ(split({"10 %\r20 %\r"}, true), (Lines{"~10 %", "~20 %"}));
}

TEST(LineSplitter, ACarriageReturnBeforeALinesEndIsNoUpdate) {
  EXPECT_EQ(split({"a\r\nb\r\n"}, true), (Lines{"a", "b"}));
  EXPECT_EQ(split({"a\r", "\n"}, true), (Lines{"~a", "a"}));  // it may have been one
}

TEST(LineSplitter, ALineWithoutAnEndComesInPieces) {
  const auto lines = split({std::string(LineSplitter::kLongest, 'x'), "yy", "\n"});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), LineSplitter::kLongest);
  EXPECT_EQ(lines[1], "yy");
}

TEST(LineSplitter, LosesNothing) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string all;
    std::vector<std::string> chunks(1);
    for (int i = 0; i < 200; ++i) {
      const char one = "ab\n\n"[random() % 4];
      all += one;
      chunks.back() += one;
      if (random() % 5 == 0) chunks.emplace_back();
    }
    std::string joined;
    for (const auto& line : split(chunks)) joined += line + "\n";
    if (all.back() != '\n') all += '\n';
    EXPECT_EQ(joined, all);
  }
}

// --- cores

/// `nodes` NUMA nodes of `cores` cores of two threads; a core's second thread has a number beyond all first ones.
std::vector<Cpu> machine(int nodes, int cores) {
  std::vector<Cpu> cpus;
  for (int thread = 0; thread < 2; ++thread) {
    for (int node = 0; node < nodes; ++node) {
      for (int core = 0; core < cores; ++core) {
        cpus.push_back({thread * nodes * cores + node * cores + core, node, node * 1000 + core});
      }
    }
  }
  return cpus;
}

using Sets = std::vector<std::vector<int>>;

TEST(CoreSets, RanksGetWholeCoresOfOneNode) {
  EXPECT_EQ(share_out(machine(2, 2), 2), (Sets{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(share_out(machine(2, 2), 4), (Sets{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(share_out(machine(2, 4), 3), (Sets{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}));
}

TEST(CoreSets, FewerRanksThanNodesGetWholeNodes) {
  EXPECT_EQ(share_out(machine(2, 1), 1), (Sets{{0, 1, 2, 3}}));
  EXPECT_EQ(share_out(machine(4, 1), 2), (Sets{{0, 1, 4, 5}, {2, 3, 6, 7}}));
}

TEST(CoreSets, MoreRanksThanCoresGetThreadsAndMoreThanThoseShare) {
  EXPECT_EQ(share_out(machine(1, 2), 4), (Sets{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(share_out({{5, 0, 0}}, 3), (Sets{{5}, {5}, {5}}));
}

TEST(CoreSets, EveryCoreIsSharedOutOnceWhereThereAreEnough) {
  for (int nodes = 1; nodes <= 4; ++nodes) {
    for (int cores = 1; cores <= 9; ++cores) {
      for (int ranks = 1; ranks <= nodes * cores; ++ranks) {
        std::vector<int> given;
        const auto sets = share_out(machine(nodes, cores), ranks);
        ASSERT_EQ(sets.size(), static_cast<std::size_t>(ranks));
        for (const auto& set : sets) {
          EXPECT_FALSE(set.empty());
          given.insert(given.end(), set.begin(), set.end());
        }
        std::ranges::sort(given);
        const bool has_twice = std::ranges::adjacent_find(given) != given.end();
        EXPECT_FALSE(has_twice);
        EXPECT_EQ(given.size(), static_cast<std::size_t>(2 * nodes * cores));
      }
    }
  }
}

TEST(CoreSets, TheSystemsDescriptionIsRead) {
  const auto root = std::filesystem::path(testing::TempDir()) / ("core_sets_" + std::to_string(::getpid()));
  cpu_set_t before;
  ::sched_getaffinity(0, sizeof before, &before);
  int number = 0;
  while (!CPU_ISSET(number, &before)) ++number;
  const auto cpu = root / "cpu" / ("cpu" + std::to_string(number));
  std::filesystem::create_directories(cpu / "topology");
  std::filesystem::create_directories(cpu / "node3");
  std::ofstream(cpu / "topology" / "physical_package_id") << "1\n";
  std::ofstream(cpu / "topology" / "core_id") << "7\n";
  const auto cpus = allowed_cpus(root);
  std::filesystem::remove_all(root);
  ASSERT_EQ(cpus.size(), static_cast<std::size_t>(CPU_COUNT(&before)));
  EXPECT_EQ(cpus[0], (Cpu{number, 3, (1 << 16) + 7}));
}

// --- where output goes

TEST(OutputPlan, FilesAreByGlobalRankAndAttempt) {
  const auto folder = (std::filesystem::path(testing::TempDir()) / ("plan_" + std::to_string(::getpid()))).string();
  const auto plan = plan_output({.redirects = "0:1", .tee = "1:2"}, folder, 4, 2, 3);
  EXPECT_FALSE(plan[0].output.to_console);
  EXPECT_EQ(plan[0].output.file, folder + "/attempt_3/4/stdout.log");
  EXPECT_TRUE(plan[0].error.to_console);
  EXPECT_EQ(plan[0].error.file, "");
  EXPECT_TRUE(plan[1].error.to_console);
  EXPECT_EQ(plan[1].error.file, folder + "/attempt_3/5/stderr.log");
  const auto all = plan_output({.log_folder = "x", .shown_ranks = "1"}, folder, 0, 2, 0);
  EXPECT_FALSE(all[0].output.to_console);
  EXPECT_TRUE(all[1].output.to_console);
  EXPECT_NE(all[0].output.file, "");
  std::filesystem::remove_all(folder);
}

TEST(OutputPlan, AJobsNameLeadsNowhereElse) {
  const auto base = (std::filesystem::path(testing::TempDir()) / ("names_" + std::to_string(::getpid()))).string();
  const OutputOptions options{.log_folder = base};
  EXPECT_EQ(choose_log_name(options, "../../etc"), ".._.._etc");
  EXPECT_EQ(choose_log_name(options, ".."), "job");
  make_log_folder(options, "mine");
  EXPECT_EQ(choose_log_name(options, "mine"), "mine-2");
  std::filesystem::remove_all(base);
}

// --- messages

TEST(Message, ComesBackAsItWas) {
  const Message message{"kind", {"", "a", std::string("\0\n", 2), std::string(3000, 'x')}};
  auto bytes = encoded(message) + encoded({"next"});
  EXPECT_EQ(take_message(bytes), message);
  EXPECT_EQ(take_message(bytes), Message{"next"});
  EXPECT_EQ(take_message(bytes), std::nullopt);
}

TEST(Message, IsTakenOnceItIsWhole) {
  const auto whole = encoded({"kind", {"field"}});
  std::string bytes;
  for (const char one : whole) {
    EXPECT_EQ(take_message(bytes), std::nullopt);
    bytes += one;
  }
  EXPECT_EQ(take_message(bytes), (Message{"kind", {"field"}}));
}

TEST(Message, StrangeBytesAreRefusedAndNeverMore) {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    auto bytes = encoded({"rank ended", {"1", "2", "3", "4", "h"}});
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    try {
      while (const auto message = take_message(bytes)) outcome_of(*message);
    } catch (const std::runtime_error&) {  // in words
    }
  }
}

TEST(NodeWords, AreReadAsTheyWereSaid) {
  const auto hello = hello_of(words_of(Hello{kLanguage, "id", 3, 2, 8, "host"}));
  EXPECT_EQ(hello.job_id + std::to_string(hello.nodes) + std::to_string(hello.node_rank) + std::to_string(hello.ranks) +
                hello.host,
            "id328host");
  const auto terms = terms_of(words_of(Terms{"id", "name", 9, 3, 4, 555, 6}));
  EXPECT_EQ(terms.id + terms.log_name, "idname");
  EXPECT_EQ((std::vector{terms.world_size, terms.nodes, terms.max_restarts, int(terms.store_port), terms.first_rank}),
            (std::vector{9, 3, 4, 555, 6}));
  const auto outcome = outcome_of(words_of(start::Outcome{4, 139, 15, 40'000'000'000ms, "h"}));
  EXPECT_EQ(outcome.rank + outcome.status + outcome.sent, 158);
  EXPECT_EQ(outcome.after, 40'000'000'000ms);
  const auto command = command_of(words_of(Command{Command::Kind::leave, 7, "why"}));
  EXPECT_EQ(command.kind, Command::Kind::leave);
  EXPECT_EQ(command.number, 7);
  EXPECT_EQ(command.text, "why");
  EXPECT_EQ(tail_of(words_of_tail(3, "t")), std::pair(3, std::string("t")));
  EXPECT_EQ(signal_of(words_of_signal(10)), 10);
  EXPECT_THROW(signal_of({"signalled", {"0"}}), std::runtime_error);
  EXPECT_THROW(command_of({"dance", {"0", ""}}), std::runtime_error);
  EXPECT_THROW(terms_of({kWelcome, {"i", "", "2", "1", "0", "70000", "0"}}), std::runtime_error);
  EXPECT_THROW(terms_of({kWelcome, {"i", "", "2", "1", "0", "7", "2"}}), std::runtime_error);
}

// --- node 0 and another one

/// A connection, an end for each.
std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> connected() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair");
  return {std::make_unique<Link>(Descriptor(ends[0]), "node 1"), std::make_unique<Link>(Descriptor(ends[1]), "node 0")};
}

std::string name_of(const Command& command) {
  constexpr const char* kNames[]{"start", "let_end", "pass_on", "kill", "leave"};
  return kNames[static_cast<int>(command.kind)] + std::string(" ") + std::to_string(command.number);
}

Lines commands(Nodes& node) {
  node.look();
  Lines all;
  while (const auto command = node.next_command()) all.push_back(name_of(*command));
  return all;
}

start::Outcome ended(int rank, int code, std::chrono::milliseconds after = 1s) {
  return {.rank = rank, .status = code << 8, .after = after};
}

/// Two nodes of one rank each.
struct TwoNodes {
  explicit TwoNodes(int max_restarts = 0, std::chrono::milliseconds exit_grace = 300s) {
    auto [of_leader, of_follower] = connected();
    std::vector<OtherNode> others;
    others.push_back({std::move(of_leader), "node 1", 1, 1});
    leader.emplace(LeadingOptions{2, max_restarts, exit_grace, 60s}, std::move(others));
    follower.emplace(std::move(of_follower));
  }
  std::optional<LeadingNode> leader;
  std::optional<FollowingNode> follower;
};

TEST(Nodes, StartTogetherAndLeaveWhenAllIsOver) {
  TwoNodes nodes;
  EXPECT_EQ(commands(*nodes.leader), Lines{"start 0"});
  EXPECT_EQ(commands(*nodes.follower), Lines{"start 0"});
  nodes.leader->rank_ended(ended(0, 0));
  nodes.leader->ranks_are_gone({});
  EXPECT_EQ(commands(*nodes.leader), Lines{});
  nodes.follower->rank_ended(ended(1, 0));
  nodes.follower->ranks_are_gone({});
  EXPECT_EQ(commands(*nodes.leader), Lines{"leave 0"});
  EXPECT_EQ(commands(*nodes.follower), Lines{"leave 0"});
}

TEST(Nodes, AFailureOnOneEndsRanksOnAllAndGivesItsCode) {
  TwoNodes nodes;
  commands(*nodes.leader);
  commands(*nodes.follower);
  nodes.follower->rank_ended(ended(1, 9));
  nodes.follower->ranks_are_gone({{1, "last words\n"}});
  EXPECT_EQ(commands(*nodes.leader), Lines{"let_end 0"});
  EXPECT_EQ(commands(*nodes.follower), Lines{"let_end 0"});
  nodes.leader->rank_ended(ended(0, 76, 2s));
  nodes.leader->ranks_are_gone({});
  EXPECT_EQ(commands(*nodes.leader), Lines{"leave 9"});
  EXPECT_EQ(commands(*nodes.follower), Lines{"leave 9"});
}

TEST(Nodes, AllStartAgainAsOftenAsTheyMay) {
  TwoNodes nodes(1);
  for (const char* const then : {"start 1", "leave 3"}) {
    commands(*nodes.leader);
    commands(*nodes.follower);
    nodes.leader->rank_ended(ended(0, 3));
    nodes.leader->ranks_are_gone({});
    nodes.follower->rank_ended(ended(1, 76));
    nodes.follower->ranks_are_gone({});
    nodes.leader->look();
    std::optional<Command> last;
    while (auto command = nodes.leader->next_command()) last = command;
    EXPECT_EQ(name_of(last.value()), then);
  }
}

TEST(Nodes, ASignalReachesEveryNodeOnceAndNothingStartsAgain) {
  TwoNodes nodes(5);
  commands(*nodes.leader);
  commands(*nodes.follower);
  nodes.follower->signalled(SIGTERM);
  EXPECT_EQ(commands(*nodes.follower), Lines{"pass_on 15"});
  EXPECT_EQ(commands(*nodes.leader), Lines{"pass_on 15"});
  EXPECT_EQ(commands(*nodes.follower), Lines{"pass_on 15"});  // ranks get it once in an attempt
  nodes.leader->signalled(SIGKILL);
  EXPECT_EQ(commands(*nodes.leader), Lines{"kill 0"});
  EXPECT_EQ(commands(*nodes.follower), Lines{"kill 0"});
  nodes.leader->rank_ended({.rank = 0, .status = SIGKILL, .sent = SIGKILL});
  nodes.leader->ranks_are_gone({});
  nodes.follower->rank_ended({.rank = 1, .status = SIGKILL, .sent = SIGKILL});
  nodes.follower->ranks_are_gone({});
  EXPECT_EQ(commands(*nodes.leader), Lines{"leave 137"});
}

TEST(Nodes, ASignalAtARestartReachesTheNewRanks) {
  TwoNodes nodes(1);
  commands(*nodes.leader);
  commands(*nodes.follower);
  nodes.leader->rank_ended(ended(0, 3));
  nodes.leader->ranks_are_gone({});
  nodes.follower->rank_ended(ended(1, 76));
  nodes.follower->ranks_are_gone({});
  commands(*nodes.leader);  // has said start 1, of which the other does not know yet
  nodes.follower->signalled(SIGTERM);
  EXPECT_EQ(nodes.follower->next_command()->kind, Command::Kind::pass_on);
  EXPECT_EQ(commands(*nodes.leader), Lines{"pass_on 15"});
  EXPECT_EQ(commands(*nodes.follower), (Lines{"let_end 0", "start 1", "pass_on 15"}));
}

TEST(Nodes, ALauncherThatIsGoneFailsTheJobWithoutAnotherStart) {
  TwoNodes nodes(5);
  commands(*nodes.leader);
  commands(*nodes.follower);
  nodes.follower.reset();
  EXPECT_EQ(commands(*nodes.leader), Lines{"let_end 0"});
  nodes.leader->rank_ended(ended(0, 76));
  nodes.leader->ranks_are_gone({});
  EXPECT_EQ(commands(*nodes.leader), Lines{"leave 1"});
}

TEST(Nodes, WithoutNodeZeroTheOthersEndTheirRanksAndLeave) {
  TwoNodes nodes;
  commands(*nodes.follower);
  nodes.leader.reset();
  EXPECT_EQ(commands(*nodes.follower), Lines{"let_end 0"});
  nodes.follower->rank_ended(ended(1, 76));
  nodes.follower->ranks_are_gone({});
  EXPECT_EQ(commands(*nodes.follower), Lines{"leave 1"});
}

TEST(Nodes, RanksThatRunOnAfterOneHasEndedWellHaveALimit) {
  TwoNodes nodes(0, 50ms);
  commands(*nodes.leader);
  commands(*nodes.follower);
  nodes.follower->rank_ended(ended(1, 0));
  nodes.leader->look();
  ASSERT_TRUE(nodes.leader->next_look());
  EXPECT_EQ(commands(*nodes.leader), Lines{});
  while (Clock::now() < *nodes.leader->next_look()) ::usleep(1000);
  EXPECT_EQ(commands(*nodes.leader), Lines{"let_end 1"});
  nodes.leader->rank_ended({.rank = 0, .status = SIGTERM, .sent = SIGTERM, .after = 2s});
  nodes.leader->ranks_are_gone({});
  nodes.follower->ranks_are_gone({});
  EXPECT_EQ(commands(*nodes.leader), Lines{"leave 1"});
}

TEST(Nodes, OneThatTellsOfRanksThatAreNotItsIsLost) {
  for (const int rank : {0, 7, 1}) {
    TwoNodes nodes;
    commands(*nodes.leader);
    commands(*nodes.follower);
    nodes.follower->rank_ended(ended(rank, 0));
    if (rank == 1) nodes.follower->rank_ended(ended(rank, 0));  // twice
    EXPECT_EQ(commands(*nodes.leader), Lines{"let_end 0"}) << rank;
  }
}

TEST(NodeWords, WhatSteersATerminalIsTakenOutOfNames) {
  EXPECT_EQ(hello_of(words_of(Hello{kLanguage, "i", 2, 1, 1, "evil\x1b[31m\nhost"})).host, "evil?[31m?host");
}

TEST(Nodes, ALauncherThatIsStoppedIsNotWaitedForForEver) {
  auto [of_leader, of_follower] = connected();
  std::vector<OtherNode> others;
  others.push_back({std::move(of_leader), "node 1", 1, 1});
  LeadingNode leader({2, 3, 300s, 50ms}, std::move(others));
  commands(leader);
  leader.rank_ended(ended(0, 3));
  leader.ranks_are_gone({});
  EXPECT_EQ(commands(leader), Lines{"let_end 0"});
  ASSERT_TRUE(leader.next_look());
  while (Clock::now() < *leader.next_look()) ::usleep(1000);
  EXPECT_EQ(commands(leader), Lines{"leave 1"});
}

TEST(Nodes, OneThatSpeaksStrangelyIsLost) {
  auto [of_leader, stranger] = connected();
  std::vector<OtherNode> others;
  others.push_back({std::move(of_leader), "node 1", 1, 1});
  LeadingNode leader({2, 0, 300s, 60s}, std::move(others));
  commands(leader);
  stranger->send({"GET / HTTP/1.1"});
  EXPECT_EQ(commands(leader), Lines{"let_end 0"});
}

}  // namespace
}  // namespace ddp::launch
