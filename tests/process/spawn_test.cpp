// ddp::spawn() starts ranks from within a program, whatever threads it has, and tells of the first that fails.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/cores.hpp"
#include "base/descriptor.hpp"
#include "process/launched.hpp"
#include "support/temp_folder.hpp"

namespace ddp::test {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

std::vector<std::string> command(std::vector<std::string> words) {
  words.insert(words.begin(), SPAWN_PROGRAM);
  return words;
}

/// What it says, after it has ended well.
std::string output_of(const std::vector<std::string>& words, const std::function<void()>& before_exec = [] {}) {
  Launched program(command(words), [&] {
    ::setenv("DDP_LOG_LEVEL", "error", 1);
    before_exec();
  });
  EXPECT_EQ(program.finish(), 0) << program.text();
  return program.text();
}

AssertionResult has(const std::string& text, const std::string& words) {
  if (text.find(words) != std::string::npos) return AssertionSuccess();
  return AssertionFailure() << "\"" << words << "\" is not in:\n" << text;
}

std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  std::istringstream lines(text);
  for (std::string word; lines >> word;) {
    if (word == "pid" && lines >> word) pids.push_back(std::stoi(word));
  }
  return pids;
}

/// Free when this was asked.
std::string free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return std::to_string(ntohs(address.sin_port));
}

TEST(Spawn, TrainsAsOneProcessOnTheWholeBatch) {
  const ddp::testing::TempFolder folder;
  EXPECT_EQ(output_of({"train_as_one", (folder / "weights.pt").string()}), "as one process\n");
}

TEST(Spawn, WorksWhereThreadsAreBusy) {
  const auto text = output_of({"among_threads"});
  EXPECT_TRUE(has(text, "sum 3039\n"));  // 1012 seen before by each of three, and their local ranks
  EXPECT_TRUE(has(text, "seen 1012\n"));
}

TEST(Spawn, AnExceptionIsRethrownWithItsRankTypeAndText) {
  const auto text = output_of({"fail", "1", "throw"});
  EXPECT_TRUE(
      has(text,
          "SpawnError of rank 1, code 1, signal 0, thrown <std::runtime_error>: rank 1 of 3: spawn: its function "
          "threw std::runtime_error: no memory for the batch\n"));
}

TEST(Spawn, AnErrorOfTheLibraryHasItsRankOnce) {
  const auto text = output_of({"fail", "1", "error"});
  EXPECT_TRUE(has(text,
                  "thrown <ddp::GradientError>: rank 1 of 3: spawn: its function threw ddp::GradientError: reducer: no "
                  "gradient for fc.weight; freeze it\n"));
}

TEST(Spawn, WhateverIsThrownIsToldByItsType) {
  EXPECT_TRUE(has(output_of({"fail", "2", "int"}),
                  "SpawnError of rank 2, code 1, signal 0, thrown <int>: rank 2 of 3: "
                  "spawn: its function threw int: an exception of an unknown type\n"));
  EXPECT_TRUE(
      has(output_of({"fail", "0", "bad_alloc"}), "SpawnError of rank 0, code 1, signal 0, thrown <std::bad_alloc>"));
}

TEST(Spawn, ARankMayFailBeforeThereIsAGroup) {
  EXPECT_TRUE(has(output_of({"fail_alone"}),
                  "thrown <std::bad_alloc>: rank 1 of 2: spawn: its function threw std::bad_alloc: std::bad_alloc\n"));
}

TEST(Spawn, ASignalThatEndsARankIsNamed) {
  EXPECT_TRUE(has(output_of({"fail", "1", "segfault"}),
                  "SpawnError of rank 1, code -1, signal 11, thrown <>: rank 1 of 3: spawn: it was killed by SIGSEGV "
                  "(signal 11)\n"));
  EXPECT_TRUE(has(output_of({"fail", "2", "killed"}),
                  "SpawnError of rank 2, code -1, signal 9, thrown <>: rank 2 of 3: spawn: it was killed by SIGKILL "
                  "(signal 9); perhaps the machine was out of memory (see dmesg)\n"));
}

TEST(Spawn, ARankThatLeavesBeforeItsFunctionReturnsHasFailed) {
  for (const std::string code : {"0", "3"}) {
    EXPECT_TRUE(has(output_of({"fail", "1", "exit" + code}),
                    "SpawnError of rank 1, code " + code +
                        ", signal 0, thrown <>: rank 1 of 3: spawn: it left with exit "
                        "code " +
                        code +
                        " before its function had returned; a function that spawn() runs returns or throws, "
                        "and does not call exit()\n"));
  }
}

TEST(Spawn, ARankThatVanishesWithCodeZeroHasFailed) {
  EXPECT_TRUE(has(output_of({"fail", "1", "_exit0"}), "SpawnError of rank 1, code 0"));
}

TEST(Spawn, ARankThatDiesAfterItsFunctionHasReturnedHasFailed) {
  EXPECT_TRUE(has(output_of({"crash_at_exit"}),
                  "rank 0 of 1: spawn: it was killed by SIGSEGV (signal 11) after its function had returned\n"));
}

TEST(Spawn, ARankThatDoesNotComeToTheCallIsToldSo) {
  for (const std::string code : {"0", "4"}) {
    EXPECT_TRUE(has(output_of({"leave_before", code}),
                    "spawn: it left with exit code " + code + " before it came to spawn() at spawn_program.cpp:"));
  }
}

TEST(Spawn, ARankThatBearsSigtermIsKilledAfterItsTime) {
  const auto text = output_of({"stubborn"});
  EXPECT_TRUE(has(text, "asked to end\n"));
  EXPECT_TRUE(has(text, "SpawnError of rank 0"));
  EXPECT_TRUE(has(text, "threw std::runtime_error: the first\n"));
  EXPECT_TRUE(has(text, "in time\n"));
}

TEST(Spawn, RanksDieWithTheProgramThatIsKilled) {
  Launched program(command({"stay"}));
  const auto pids = pids_in(program.read_until("pid ", 3) + " ");
  ASSERT_EQ(pids.size(), 3U) << program.text();
  std::vector<ProcessHandle> ranks;
  for (const pid_t pid : pids) ranks.emplace_back(pid);
  program.signal(SIGKILL);
  for (const auto& rank : ranks) EXPECT_TRUE(rank.ends_by(Clock::now() + 3s));
}

TEST(Spawn, MayBeCalledSeveralTimes) {
  const auto text = output_of({"twice"});
  EXPECT_EQ(text, "round 0: 3.000000\nround 1: 3.000000\nonce more\nbehind\n");
}

TEST(Spawn, MayBeCalledAgainAfterAFailure) {
  const auto text = output_of({"again_after_a_failure"});
  EXPECT_TRUE(has(text, "attempt 1 after rank 1\nattempt 1 after rank 1\nattempts 2\n"));
}

TEST(Spawn, MayBeCalledOnTwoThreadsAtOnce) {
  const auto text = output_of({"on_two_threads"});
  for (const std::string line : {"first 10: 21\n", "first 100: 201\n"}) {
    const auto first = text.find(line);
    ASSERT_NE(first, std::string::npos) << text;
    EXPECT_NE(text.find(line, first + 1), std::string::npos) << text;  // of both its ranks
  }
  EXPECT_TRUE(has(text, "both\n"));
}

TEST(Spawn, TwoThreadsInOneCallAreRefused) {
  const ddp::testing::TempFolder folder;
  const auto pipe = (folder / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto text = output_of({"on_one_line", pipe});
  EXPECT_TRUE(has(text, "logic_error: spawn: two threads are in the call at spawn_program.cpp:"));
  EXPECT_TRUE(has(text, "the first is well\n"));
}

TEST(Spawn, TwoNodesMeetAtTheMastersAddress) {
  const auto port = free_port();
  Launched second(command({"node", "1", port}));
  Launched first(command({"node", "0", port}));
  EXPECT_EQ(first.finish(), 0) << first.text();
  EXPECT_EQ(second.finish(), 0) << second.text();
  for (const std::string line : {"rank 0 of 4, local 0 of 2, node 0: 4\n", "rank 1 of 4, local 1 of 2, node 0: 4\n"})
    EXPECT_TRUE(has(first.text(), line));
  for (const std::string line : {"rank 2 of 4, local 0 of 2, node 1: 4\n", "rank 3 of 4, local 1 of 2, node 1: 4\n"})
    EXPECT_TRUE(has(second.text(), line));
}

TEST(Spawn, APortThatIsTakenIsNamed) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(socket.get(), 1), 0);
  ASSERT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto port = std::to_string(ntohs(address.sin_port));
  EXPECT_TRUE(has(output_of({"node", "0", port}), "ConfigError: spawn: cannot listen on master_port=" + port + ": "));
}

TEST(Spawn, SenselessArgumentsAreNamed) {
  EXPECT_EQ(output_of({"wrong"}),
            "ConfigError: spawn: ranks=0 is less than 1; a rank for each device or core\n"
            "ConfigError: spawn: nnodes=0 is less than 1; 1 for this host alone\n"
            "ConfigError: spawn: node_rank=2 is none of nnodes=2; nodes count from 0\n"
            "ConfigError: spawn: node_rank=-1 is none of nnodes=1; nodes count from 0\n"
            "ConfigError: spawn: nnodes=2 without master_addr; give the name or address of node 0\n"
            "ConfigError: spawn: nnodes=2 without master_port; give a free port of node 0, the same on each node\n"
            "logic_error: spawn: the function is empty\n");
}

TEST(Spawn, ARankSpawnsNone) {
  EXPECT_TRUE(has(output_of({"nested"}), "logic_error: spawn: called inside of a function that spawn() runs"));
  EXPECT_TRUE(has(output_of({"greet"}, [] { ::setenv("RANK", "1", 1); }),
                  "ConfigError: spawn: this process is a rank already, RANK=1, of ddprun, torchrun or alike"));
}

TEST(Spawn, ATicketThatWasMeantForAnotherProcessIsNone) {
  for (const auto* ticket : {"1 0 7 1 1", "x"}) {
    const auto text = output_of({"greet"}, [&] { ::setenv("DDP_SPAWN", ticket, 1); });
    EXPECT_TRUE(has(text, "all well\n")) << ticket;
  }
}

// It changes its folder, its signals and its descriptors before.
TEST(Spawn, ARankBeginsAsTheProgramBegan) {
  const ddp::testing::TempFolder folder;
  int input[2];
  ASSERT_EQ(::pipe2(input, O_CLOEXEC), 0);
  const Descriptor read_end(input[0]), write_end(input[1]);
  ASSERT_EQ(::write(write_end.get(), "word\n", 5), 5);
  const auto text = output_of({"begin_alike"}, [&] {
    ::dup2(read_end.get(), STDIN_FILENO);
    ::unsetenv("OMP_NUM_THREADS");
    if (::chdir(folder.path().c_str()) != 0) ::_exit(98);
  });
  EXPECT_TRUE(has(text, "rank 0 open: 0 1 2 socket pipe\n"));
  EXPECT_TRUE(has(text, "rank 1 open: 0 1 2 pipe\n"));
  for (const std::string rank : {"rank 0 ", "rank 1 "}) {
    EXPECT_TRUE(has(text, rank + "in " + std::filesystem::canonical(folder.path()).string() + "\n"));
    EXPECT_TRUE(has(text, rank + "SIGTERM open, SIGHUP not ignored\n"));
    EXPECT_TRUE(has(text, rank + "reads nothing\n"));
    EXPECT_TRUE(has(text, rank + "threads " + std::to_string(threads_per_rank(allowed_cores(), 2)) + "\n"));
  }
}

TEST(Spawn, TheUsersNumberOfThreadsStays) {
  EXPECT_TRUE(has(output_of({"begin_alike"}, [] { ::setenv("OMP_NUM_THREADS", "3", 1); }), "rank 0 threads 3\n"));
}

TEST(Spawn, LeavesOtherChildrenAndTheProgramsSignalsAlone) {
  EXPECT_EQ(output_of({"beside_a_child"}), "undisturbed\n");
}

TEST(Spawn, WorksWhereTheProgramIgnoresItsChildren) {
  EXPECT_EQ(output_of({"ignoring_children"}), "all well\n");
  EXPECT_TRUE(has(output_of({"ignoring_children", "badly"}),
                  "rank 1 of 2: spawn: it ended in a way that nobody knows, since this program waits for all of its "
                  "children or ignores SIGCHLD"));
}

/// Commands of a shell whose $0 is the program's folder.
class SpawnStarted : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ways, SpawnStarted,
                         ::testing::Values("cd $0 && exec ./train greet", "PATH=$0:$PATH exec train greet",
                                           "cd $0 && exec -a other ./train greet", "cd / && exec ${0#/}/train greet"));

TEST_P(SpawnStarted, FindsItsProgram) {
  const ddp::testing::TempFolder folder;
  std::filesystem::copy_file(SPAWN_PROGRAM, folder / "train");
  Launched program({"/bin/bash", "-c", GetParam(), folder.path().string()});
  EXPECT_EQ(program.finish(), 0);
  EXPECT_TRUE(has(program.text(), "rank 0\n"));
  EXPECT_TRUE(has(program.text(), "rank 1\n"));
}

TEST(Spawn, FindsItsProgramAlsoWhenItsFileIsGoneOrAnother) {
  const ddp::testing::TempFolder folder;
  const auto pipe = (folder / "go").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const bool is_replaced : {false, true}) {
    std::filesystem::copy_file(SPAWN_PROGRAM, folder / "train");
    Launched program({(folder / "train").string(), "greet_after", pipe});
    program.read_until("started\n", 1);
    std::filesystem::remove(folder / "train");
    if (is_replaced) std::filesystem::copy_file("/bin/false", folder / "train");
    std::ofstream(pipe) << "go\n";
    EXPECT_EQ(program.finish(), 0) << program.text();
    EXPECT_TRUE(has(program.text(), "rank 0\n"));
    EXPECT_TRUE(has(program.text(), "all well\n"));
    std::filesystem::remove(folder / "train");
  }
}

}  // namespace
}  // namespace ddp::test
