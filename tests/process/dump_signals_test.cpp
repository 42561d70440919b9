// Signals that leave dumps, and what stays of the program's own. DDPRUN and DUMP_PROGRAM are the paths of the programs.
#include <sys/wait.h>

#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ddp/run.hpp"
#include "process/dump_fixture.hpp"
#include "process/launched.hpp"

namespace ddp::testing {
namespace {

volatile int* volatile no_place = nullptr;

void fault() { *no_place = 1; }

/// Two ranks, of which rank 1 does `deed` after three steps; rank 0 waits until it is gone.
std::vector<Outcome> observe(const std::function<void()>& deed, const std::function<void()>& before = [] {}) {
  return observe_ranks(2, [&](const Environment& environment) {
    before();
    const auto group = join(environment);
    make_three_steps(*group);
    if (group->rank() == 1) {
      deed();
      return group->shutdown();
    }
    try {
      group->barrier();
    } catch (const PeerLostError&) {
    }
  });
}

class DumpsAt : public Dumps, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, DumpsAt, ::testing::Values(SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT),
                         [](const auto& param) { return std::string("SIG") + ::sigabbrev_np(param.param); });

TEST_P(DumpsAt, AFatalSignalIsWrittenAndSaidAndEndsTheProcessAsBefore) {
  const auto outcome = observe([] { std::raise(GetParam()); }).at(1);
  EXPECT_EQ(outcome.signal, GetParam()) << outcome.ending();
  const auto name = std::string("SIG") + ::sigabbrev_np(GetParam());
  EXPECT_TRUE(contains(outcome.output, "rank 1 of 2: " + name + "; this rank's calls are in " + file_of(1) + "\n"));
  EXPECT_EQ(in_dump_of(1, "[d['why'], d['rank'], d['step'], d['groups'][0]['last_completed'], 'threads' in d]"),
            "['" + name + "', 1, 3, 3, False]");
  EXPECT_EQ(folder().files().size(), 1U) << "rank 0 has only lost its peer";
}

TEST_F(Dumps, AFaultIsGivenWithItsAddress) {
  const auto outcome = observe(fault).at(1);
  EXPECT_EQ(outcome.signal, SIGSEGV);
  EXPECT_EQ(in_dump_of(1, "[d['why'], d['error']]"), "['SIGSEGV', 'at address 0x0']");
}

// On the alternative stack of the usual size, beside the frame in which the kernel keeps the processor's state.
TEST_F(Dumps, AFullStackIsWrittenWhereTheThreadHasAnotherOne) {
  const auto outcome = observe([] {
                         std::thread([] {
                           std::vector<char> memory(static_cast<std::size_t>(SIGSTKSZ));
                           const stack_t stack{memory.data(), 0, memory.size()};
                           ::sigaltstack(&stack, nullptr);
                           static std::function<int(int)> deeper = [](int depth) {
                             volatile char room[4096] = {};
                             return depth < 0 ? room[1] : deeper(depth + 1) + room[0];
                           };
                           ::_exit(deeper(0));
                         }).join();
                       }).at(1);
  EXPECT_EQ(outcome.signal, SIGSEGV) << outcome.ending();
  EXPECT_EQ(in_dump_of(1, "[d['why'], d['groups'][0]['last_completed']]"), "['SIGSEGV', 3]");
}

TEST_F(Dumps, AnExceptionThatNobodyCatchesIsTheReasonOfTheAbort) {
  const auto outcome = observe([] { std::thread([] { throw std::runtime_error("a thread's own"); }).join(); }).at(1);
  EXPECT_EQ(outcome.signal, SIGABRT) << outcome.ending();
  EXPECT_EQ(in_dump_of(1, "[d['why'], d['error']]"), "['SIGABRT', \"a thread's own\"]");
}

TEST_F(Dumps, AFolderThatIsNotThereDoesNotChangeTheEndByASignal) {
  ::setenv("DDP_DUMP_DIR", (folder() / "none").c_str(), 1);
  const auto outcome = observe(fault).at(1);
  EXPECT_EQ(outcome.signal, SIGSEGV);
  EXPECT_TRUE(contains(outcome.output, "rank 1 of 2: SIGSEGV; cannot write this rank's calls to " +
                                           (folder() / "none/ddp_rank1_").string()));
  EXPECT_TRUE(contains(outcome.output, ": No such file or directory\n"));
}

TEST_F(Dumps, AnEarlierHandlerOfTheProgramComesAfterTheDump) {
  const auto outcome = observe(fault, [] { std::signal(SIGSEGV, [](int) { ::_exit(42); }); }).at(1);
  EXPECT_EQ(outcome.exit_code, 42) << outcome.ending();
  EXPECT_EQ(in_dump_of(1, "d['why']"), "SIGSEGV");
}

TEST_F(Dumps, ALaterHandlerOfTheProgramWins) {
  const auto outcome = observe([] {
                         std::signal(SIGSEGV, [](int) { ::_exit(43); });
                         fault();
                       }).at(1);
  EXPECT_EQ(outcome.exit_code, 43) << outcome.ending();
  EXPECT_EQ(folder().files().size(), 0U);
}

volatile std::sig_atomic_t own_signals = 0;

TEST_F(Dumps, AHandlerOfTheProgramKeepsSigusr2) {
  const auto outcome = observe(
                           [] {
                             std::raise(SIGUSR2);
                             EXPECT_EQ(own_signals, 1);
                           },
                           [] { std::signal(SIGUSR2, [](int) { own_signals = own_signals + 1; }); })
                           .at(1);
  EXPECT_TRUE(outcome.succeeded()) << outcome.ending() << outcome.output;
  EXPECT_EQ(folder().files().size(), 0U);
}

bool is_default(int signal) {
  struct sigaction action{};
  ::sigaction(signal, nullptr, &action);
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

TEST_F(Dumps, AVariableLeavesAllSignalsAsTheyAre) {
  ::setenv("DDP_DUMP_SIGNALS", "0", 1);
  const auto outcomes = observe([] {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGUSR2}) EXPECT_TRUE(is_default(signal));
  });
  ::setenv("DDP_DUMP_SIGNALS", "maybe", 1);
  try {
    init_process_group({.environment = Environment{}});
    ADD_FAILURE() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(contains(error.what(), "DDP_DUMP_SIGNALS=maybe is no switch; set it to 0"));
  }
  ::unsetenv("DDP_DUMP_SIGNALS");
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

/// In a child of this rank. Its exit code, or -n for signal n.
int in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST_F(Dumps, AForkedChildIsNoRank) {
  const auto outcome = observe([] {
                         EXPECT_EQ(in_child(fault), -SIGSEGV);
                         EXPECT_EQ(in_child([] { std::abort(); }), -SIGABRT);
                         EXPECT_EQ(in_child([] { std::raise(SIGUSR2); }), 0);
                       }).at(1);
  EXPECT_TRUE(outcome.succeeded()) << outcome.ending() << outcome.output;
  EXPECT_EQ(folder().files().size(), 0U);
}

TEST_F(Dumps, Sigusr2ToTheLauncherReachesAllRanksAndTheJobGoesOn) {
  test::Launched job({DDPRUN, "--nproc-per-node", "2", DUMP_PROGRAM});
  job.read_until("ready", 2);
  ::kill(job.pid(), SIGUSR2);
  EXPECT_EQ(job.finish(), 0) << job.text();
  EXPECT_TRUE(contains(job.text(), "ddprun: passing SIGUSR2 on to ranks 0, 1\n"));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(contains(job.text(), "SIGUSR2: this rank's calls are in " + file_of(rank) + "\n"));
    EXPECT_EQ(in_dump_of(rank, "[d['why'], d['error'], d['rank'], d['threads'][0]['is_main']]"),
              "['SIGUSR2', None, " + std::to_string(rank) + ", True]");
  }
}

}  // namespace
}  // namespace ddp::testing
