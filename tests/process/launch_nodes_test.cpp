// A job of several nodes: launchers on one machine, each for a node.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>

#include "base/descriptor.hpp"
#include "process/ddprun_jobs.hpp"

namespace ddp::test {
namespace {

/// An address of this machine that no other test has, so that ports need not be chosen.
std::string own_address() {
  const auto pid = static_cast<unsigned>(::getpid());
  return "127." + std::to_string(1 + pid / 65536 % 250) + "." + std::to_string(pid / 256 % 256) + "." +
         std::to_string(1 + pid % 254);
}

/// The launcher of one node of two, with `number` ranks.
Launched node(int node_rank, int number, const Words& action, const Words& flags = {}) {
  Words words{"--nnodes",      "2",           "--node-rank",      std::to_string(node_rank),
              "--master-addr", own_address(), "--nproc-per-node", std::to_string(number)};
  if (node_rank == 0) words.insert(words.end(), {"--local-addr", own_address()});
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(RANK_PROBE);
  words.insert(words.end(), action.begin(), action.end());
  return ddprun(words, [] { ::setenv("OMP_NUM_THREADS", "1", 1); });
}

void expect_mentions(const std::string& text, const std::string& word) {
  EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(LaunchNodes, RanksCountOnOverNodesOfAnySizeAndMeet) {
  const Words action{"variables",        "RANK",       "LOCAL_RANK",       "WORLD_SIZE",
                     "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR"};
  auto second = node(1, 2, action);  // in either order
  auto first = node(0, 3, action);
  ASSERT_EQ(first.finish(), 0) << first.text();
  ASSERT_EQ(second.finish(), 0) << second.text();
  EXPECT_EQ(lines_with(second.text(), "[4] "),
            (Words{"[4] GROUP_RANK=1", "[4] GROUP_WORLD_SIZE=2", "[4] LOCAL_RANK=1", "[4] LOCAL_WORLD_SIZE=2",
                   "[4] MASTER_ADDR=" + own_address(), "[4] RANK=4", "[4] WORLD_SIZE=5"}));
  EXPECT_EQ(lines_with(first.text(), "[2] LOCAL_"), (Words{"[2] LOCAL_RANK=2", "[2] LOCAL_WORLD_SIZE=3"}));
}

TEST(LaunchNodes, RanksOfAllNodesReachRankZerosSocket) {
  auto first = node(0, 2, {"meet"});
  auto second = node(1, 2, {"meet"});
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(second.finish(), 0) << second.text();
  EXPECT_EQ(first.occurrences("] met\n") + second.occurrences("] met\n"), 4);
}

TEST(LaunchNodes, AFailureGivesAllLaunchersItsCodeAndNodeZeroTellsWhere) {
  auto first = node(0, 1, {"leave_alone", "1", "9"});
  auto second = node(1, 2, {"leave_alone", "1", "9"});
  EXPECT_EQ(first.finish(), 9) << first.text();
  EXPECT_EQ(second.finish(), 9) << second.text();
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const auto line = lines_with(first.text(), "rank 1 failed first");
  ASSERT_EQ(line.size(), 1u) << first.text();
  expect_mentions(line[0], std::string(" on ") + host + "): exit code 9");
  expect_mentions(second.text(), "ddprun: rank 1 failed first");
  expect_mentions(second.text(), "ddprun: 2 nodes have met, for 3 ranks; this is node 1, from rank 1 on");
}

TEST(LaunchNodes, AllNodesStartAgain) {
  auto first = node(0, 1, {"fail_until", "2"}, {"--max-restarts", "2"});
  auto second = node(1, 2, {"fail_until", "2"});
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(second.finish(), 0) << second.text();
  EXPECT_EQ(second.occurrences("attempt 2 of 2"), 2) << second.text();
  EXPECT_EQ(first.occurrences("attempt 2 of 2"), 1) << first.text();
  EXPECT_EQ(lines_with(second.text(), "exit code 7; restarting all ranks (restart ").size(), 2u) << second.text();
}

TEST(LaunchNodes, ASignalToOneLauncherReachesTheRanksOfAll) {
  auto first = node(0, 1, {"save_on_term"});
  auto second = node(1, 1, {"save_on_term"});
  first.read_until("pids", 1);
  second.read_until("pids", 1);
  second.signal(SIGTERM);
  EXPECT_EQ(second.finish(), 0) << second.text();
  EXPECT_EQ(first.finish(), 0) << first.text();
  expect_mentions(first.text(), "passing SIGTERM on to rank 0");
}

// As srun does, or a terminal's Ctrl-C.
TEST(LaunchNodes, ASignalToAllLaunchersReachesEachRankOnce) {
  auto first = node(0, 1, {"count_interrupts"});
  auto second = node(1, 2, {"count_interrupts"});
  first.read_until("pids", 1);
  second.read_until("pids", 2);
  first.signal(SIGINT);
  second.signal(SIGINT);
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(second.finish(), 0) << second.text();
  EXPECT_EQ(first.occurrences("interrupted\n"), 1) << first.text();
  EXPECT_EQ(second.occurrences("interrupted\n"), 2) << second.text();
}

TEST(LaunchNodes, AQuestionToOneLauncherReachesTheRanksOfAll) {
  auto first = node(0, 1, {"answer_usr1"});
  auto second = node(1, 1, {"answer_usr1"});
  first.read_until("ready", 1);
  second.read_until("ready", 1);
  first.signal(SIGUSR1);
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(second.finish(), 0) << second.text();
}

/// Kills one launcher's process; the other one ends its ranks and says why.
void expect_other_ends(int killed_node, const char* says) {
  Launched nodes[]{node(0, 1, {"family"}, {"--shutdown-timeout", "0.2"}),
                   node(1, 1, {"family"}, {"--shutdown-timeout", "0.2"})};
  for (auto& one : nodes) one.read_until("pids", 1);
  auto& killed = nodes[killed_node];
  auto& other = nodes[1 - killed_node];
  killed.signal(SIGKILL);
  EXPECT_EQ(killed.finish(), -SIGKILL) << "its ranks live on: " << killed.text();
  EXPECT_EQ(other.finish(), 1) << other.text();
  expect_mentions(other.text(), says);
}

TEST(LaunchNodes, WithoutNodeZerosLauncherTheOthersEnd) { expect_other_ends(0, "launcher of node 0 is gone"); }

TEST(LaunchNodes, WithoutAnotherNodesLauncherTheJobEnds) { expect_other_ends(1, "launcher of node 1 on "); }

TEST(LaunchNodes, AnotherJobIsRefusedAndTheRightOneStillComes) {
  auto first = node(0, 1, {"variables", "TORCHELASTIC_RUN_ID"}, {"--rdzv-id", "mine"});
  auto stranger = node(1, 1, {"leave", "0", "0"}, {"--rdzv-id", "other"});
  EXPECT_EQ(stranger.finish(), 2);
  expect_mentions(stranger.text(), "refuses this node: it belongs to the job \"other\", this is the job \"mine\"");
  auto second = node(1, 1, {"variables", "TORCHELASTIC_RUN_ID"}, {"--rdzv-id", "mine"});
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(second.finish(), 0) << second.text();
  expect_mentions(second.text(), "TORCHELASTIC_RUN_ID=mine");
  expect_mentions(first.text(), "refusing node 1");
}

TEST(LaunchNodes, NodesThatDisagreeAreToldSo) {
  auto first = node(0, 1, {"leave", "0", "0"});
  auto third =
      ddprun({"--nnodes", "3", "--node-rank", "2", "--master-addr", own_address(), RANK_PROBE, "leave", "0", "0"});
  EXPECT_EQ(third.finish(), 2);
  expect_mentions(third.text(), "--nnodes 3");
  auto twin = ddprun({"--nnodes", "2", "--node-rank", "0", "--master-addr", own_address(), "--local-addr",
                      own_address(), RANK_PROBE, "leave", "0", "0"});
  EXPECT_EQ(twin.finish(), 2);
  expect_mentions(twin.text(), "cannot listen on " + own_address() + ":29500");
  auto second = node(1, 1, {"leave", "0", "0"});
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(second.finish(), 0) << second.text();
}

TEST(LaunchNodes, TwoNodesOfOneNumberAreToldSo) {
  const Words three{"--nnodes", "3", "--master-addr", own_address(), "--node-rank"};
  const auto one_of_three = [&](const char* number) {
    auto words = three;
    words.insert(words.end(), {number, RANK_PROBE, "leave", "0", "0"});
    if (number[0] == '0') words.insert(words.begin(), {"--local-addr", own_address()});
    return ddprun(words);
  };
  auto first = one_of_three("0");
  auto second = one_of_three("1");
  auto again = one_of_three("1");
  // Either of them is the later one.
  const ProcessHandle handles[]{ProcessHandle(second.pid()), ProcessHandle(again.pid())};
  const auto limit = Clock::now() + 10s;
  while (!handles[0].ends_by(Clock::now()) && !handles[1].ends_by(Clock::now() + 20ms)) ASSERT_LT(Clock::now(), limit);
  auto& refused = handles[0].ends_by(Clock::now()) ? second : again;
  auto& taken = &refused == &second ? again : second;
  EXPECT_EQ(refused.finish(), 2);
  expect_mentions(refused.text(), "there is a node 1 already");
  auto third = one_of_three("2");
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(taken.finish(), 0) << taken.text();
  EXPECT_EQ(third.finish(), 0) << third.text();
}

/// Connects to node 0's port and says `words`.
Descriptor say_to_node_0(const std::string& words) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(29500);
  ::inet_pton(AF_INET, own_address().c_str(), &address.sin_addr);
  const auto limit = Clock::now() + 5s;
  for (;;) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      EXPECT_EQ(::send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
      return socket;
    }
    if (Clock::now() > limit) throw std::runtime_error("node 0 does not listen");
    ::usleep(2000);
  }
}

TEST(LaunchNodes, StrangersAtThePortAreNoNodes) {
  auto first = node(0, 1, {"leave", "0", "0"});
  const auto silent = say_to_node_0("");
  const auto browser = say_to_node_0("GET / HTTP/1.1\r\n\r\n");
  const auto torn = say_to_node_0(std::string("\x10\0\0\0\x05\0\0\0hello", 13));
  const auto huge = say_to_node_0("\xff\xff\xff\x7f");
  auto second = node(1, 1, {"leave", "0", "0"});
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(second.finish(), 0) << second.text();
}

TEST(LaunchNodes, ANodeThatDoesNotComeIsNamedAfterTheTime) {
  auto first = node(0, 1, {"leave", "0", "0"}, {"--rdzv-conf", "join_timeout=0.3"});
  EXPECT_EQ(first.finish(), 2);
  expect_mentions(first.text(), "node 1 did not come to " + own_address() + ":29500 after 1 s");
  auto second = node(1, 1, {"leave", "0", "0"}, {"--rdzv-conf", "timeout=0.3"});
  EXPECT_EQ(second.finish(), 2);
  expect_mentions(second.text(), "does not answer at " + own_address() + ":29500 (Connection refused)");
}

TEST(LaunchNodes, NodeZeroSaysForWhomItWaitsAndCanBeEnded) {
  auto first = node(0, 1, {"leave", "0", "0"});
  first.read_until("waiting for node 1 at " + own_address() + ":29500", 1);
  first.signal(SIGINT);
  EXPECT_EQ(first.finish(), 128 + SIGINT);
}

TEST(LaunchNodes, OthersSayThatTheyWaitForNodeZeroAndCanBeEnded) {
  auto second = node(1, 1, {"leave", "0", "0"});
  second.read_until("waiting for node 0 at " + own_address() + ":29500 (Connection refused)", 1);
  second.signal(SIGTERM);
  EXPECT_EQ(second.finish(), 128 + SIGTERM);
}

TEST(LaunchNodes, SomebodyAtThePortWhoSaysNothingIsNotWaitedForForEver) {
  const Descriptor silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(29500);
  ::inet_pton(AF_INET, own_address().c_str(), &address.sin_addr);
  const int on = 1;
  ::setsockopt(silent.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(silent.get(), 5), 0);
  auto second = node(1, 1, {"leave", "0", "0"}, {"--rdzv-conf", "timeout=0.5"});
  EXPECT_EQ(second.finish(), 2);
  expect_mentions(second.text(), "(somebody listens there, but does not answer)");
}

TEST(LaunchNodes, AnAddressOfAnotherMachineIsNotThisOnes) {
  for (const char* const number : {"0", "1"}) {
    auto job = ddprun({"--nnodes", "2", "--node-rank", number, "--master-addr", own_address(), "--local-addr",
                       "192.0.2.1", RANK_PROBE, "leave", "0", "0"});
    EXPECT_EQ(job.finish(), 2);
    expect_mentions(job.text(), "--local-addr 192.0.2.1 is no address of this machine");
  }
}

TEST(LaunchNodes, ANodeZeroThatIsElsewhereIsWarned) {
  auto first = ddprun({"--nnodes", "2", "--master-addr", "192.0.2.1", "--rdzv-conf", "timeout=0.1", "--local-addr",
                       own_address(), RANK_PROBE, "leave", "0", "0"});
  EXPECT_EQ(first.finish(), 2);
  expect_mentions(first.text(), "warning: 192.0.2.1 is no address of this machine");
}

TEST(LaunchNodes, AMasterThatDoesNotResolveIsNamed) {
  auto second = ddprun({"--nnodes", "2", "--node-rank", "1", "--master-addr", "nonexistent.invalid", "--rdzv-conf",
                        "timeout=0.1", RANK_PROBE, "leave", "0", "0"});
  EXPECT_EQ(second.finish(), 2);
  expect_mentions(second.text(), "nonexistent.invalid:29500");
}

}  // namespace
}  // namespace ddp::test
