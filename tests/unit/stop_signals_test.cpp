#include "base/stop_signals.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <thread>

#include "base/stop_wish.hpp"

namespace ddp {
namespace {

// Lives in the handlers of these tests.
volatile std::sig_atomic_t calls = 0, wish_at_call = -1;

void count_call(int /*number*/) {
  calls = calls + 1;
  wish_at_call = stop_wish();
}

/// How a forked child ends: the code that `body` returns, or -n for signal n.
int ending_of_fork(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/// The same, and there the signals have their default effects.
int ending(const std::function<int()>& body) {
  return ending_of_fork([&] {
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) std::signal(signal, SIG_DFL);
    return body();
  });
}

TEST(StopSignals, AreAWishOfAProcessThatGoesOn) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1})
    EXPECT_EQ(ending([=] {
                want_to_stop_at({SIGTERM, SIGINT, SIGUSR1});
                if (stop_wish() != kNoStop) return 0;
                std::raise(signal);
                return static_cast<int>(stop_wish());
              }),
              signal);
}

TEST(StopSignals, AreAWishOnAnyThread) {
  EXPECT_EQ(ending([] {
              want_to_stop_at({SIGTERM});
              std::thread([] { std::raise(SIGTERM); }).join();
              return static_cast<int>(stop_wish());
            }),
            SIGTERM);
}

TEST(StopSignals, ThatWereNotAskedForActAsBefore) {
  EXPECT_EQ(ending([] {
              want_to_stop_at({SIGTERM});
              return std::raise(SIGUSR1);
            }),
            -SIGUSR1);
}

TEST(StopSignals, KeepTheFirstReason) {
  EXPECT_EQ(ending([] {
              want_to_stop_at({SIGTERM, SIGUSR1});
              for (const int signal : {SIGUSR1, SIGTERM, SIGTERM}) std::raise(signal);
              want_to_stop(kStopByProgram);
              return static_cast<int>(stop_wish());
            }),
            SIGUSR1);
}

TEST(StopSignals, TheSecondInterruptEndsTheProcess) {
  EXPECT_EQ(ending([] {
              want_to_stop_at({SIGTERM, SIGINT});
              std::raise(SIGTERM);
              std::raise(SIGINT);
              std::raise(SIGINT);  // one and the same Ctrl-C
              if (stop_wish() != SIGTERM) return 1;
              ::usleep(1'100'000);
              std::raise(SIGINT);
              return 0;
            }),
            -SIGINT);
}

TEST(StopSignals, AnEarlierHandlerRunsAfterTheWishAndAtEachInterrupt) {
  EXPECT_EQ(ending([] {
              std::signal(SIGINT, count_call);
              want_to_stop_at({SIGINT});
              std::raise(SIGINT);
              if (calls != 1 || wish_at_call != SIGINT) return 1;
              std::raise(SIGINT);
              return calls == 2 ? 0 : 2;
            }),
            0);
}

TEST(StopSignals, AnEarlierHandlerGetsWhatTheSenderSaid) {
  EXPECT_EQ(ending([] {
              struct sigaction action{};
              action.sa_flags = SA_SIGINFO;
              action.sa_sigaction = [](int, siginfo_t* info, void*) { calls = info->si_value.sival_int; };
              ::sigaction(SIGTERM, &action, nullptr);
              want_to_stop_at({SIGTERM});
              ::sigqueue(::getpid(), SIGTERM, {.sival_int = 42});
              for (int i = 0; i < 1000 && calls == 0; ++i) ::poll(nullptr, 0, 10);  // ThreadSanitizer brings it later
              return static_cast<int>(calls);
            }),
            42);
}

TEST(StopSignals, AskedForTwiceCallAnEarlierHandlerOnce) {
  EXPECT_EQ(ending([] {
              std::signal(SIGTERM, count_call);
              want_to_stop_at({SIGTERM});
              want_to_stop_at({SIGTERM, SIGINT});
              std::raise(SIGTERM);
              return static_cast<int>(calls);
            }),
            1);
}

TEST(StopSignals, ALaterHandlerWins) {
  EXPECT_EQ(ending([] {
              want_to_stop_at({SIGTERM});
              std::signal(SIGTERM, count_call);
              want_to_stop_at({SIGTERM});
              std::raise(SIGTERM);
              return calls == 1 && stop_wish() == kNoStop ? 0 : 1;
            }),
            0);
}

TEST(StopSignals, WhatIsIgnoredStaysIgnored) {
  EXPECT_EQ(ending([] {
              std::signal(SIGINT, SIG_IGN);
              want_to_stop_at({SIGTERM, SIGINT});
              std::raise(SIGINT);
              std::raise(SIGINT);
              return static_cast<int>(stop_wish());
            }),
            kNoStop);
}

TEST(StopSignals, LetWaitingCallsGoOnAndErrnoAlone) {
  EXPECT_EQ(ending([] {
              want_to_stop_at({SIGTERM});
              struct sigaction action{};
              ::sigaction(SIGTERM, nullptr, &action);
              if ((action.sa_flags & SA_RESTART) == 0) return 1;
              errno = EDOM;
              std::raise(SIGTERM);
              return errno == EDOM ? 0 : 2;
            }),
            0);
}

TEST(StopSignals, EndAForkedChildAsBefore) {
  EXPECT_EQ(ending([] {
              want_to_stop_at({SIGTERM});
              return -ending_of_fork([] { return std::raise(SIGTERM); });
            }),
            SIGTERM);
}

TEST(StopSignals, AreAWishOfAForkedChildThatAsksForThemItself) {
  EXPECT_EQ(ending([] {
              want_to_stop_at({SIGINT, SIGTERM});
              std::raise(SIGINT);
              return ending_of_fork([] {
                want_to_stop_at({SIGINT, SIGTERM});
                std::raise(SIGINT);  // the first of its own
                std::raise(SIGTERM);
                return 42;
              });
            }),
            42);
}

TEST(StopSignals, RefuseWhatCannotBeCaughtAndChangeNothing) {
  struct sigaction before{}, after{};
  ::sigaction(SIGTERM, nullptr, &before);
  for (const int wrong : {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, 0, -1, NSIG, 1000})
    EXPECT_THROW(want_to_stop_at({SIGTERM, wrong}), std::invalid_argument) << wrong;
  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(StopWish, NamesReasonsAndRanks) {
  EXPECT_EQ(described({SIGTERM, SIGTERM}), "SIGTERM on all ranks");
  EXPECT_EQ(described({kNoStop, kNoStop, SIGUSR1}), "SIGUSR1 on rank 2");
  EXPECT_EQ(described({kStopByProgram, kNoStop, SIGUSR1, kStopByProgram}),
            "SIGUSR1 on rank 2, request_stop() on ranks 0, 3");
  EXPECT_EQ(described({kNoStop, 64}), "signal 64 on rank 1");
}

TEST(StopWish, NamesAnEarlierAgreementWhereThereIsNothingElse) {
  EXPECT_EQ(described({kStopAgreedBefore, SIGINT, kNoStop}), "SIGINT on rank 1");
  EXPECT_EQ(described({kStopAgreedBefore, kNoStop}), "an earlier agreement on rank 0");
}

}  // namespace
}  // namespace ddp
