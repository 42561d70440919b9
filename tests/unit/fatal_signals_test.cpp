#include "base/fatal_signals.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ddp {
namespace {

struct Ended {
  int signal = 0;  // that ended it, or
  int code = -1;
  std::string said;  // by the report: the signals' numbers
};

int report_to = -1;

void say(const char* text) {
  if (::write(report_to, text, 1) != 1) ::_exit(99);
}

const char* letter_of(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "S";
    case SIGBUS:
      return "B";
    case SIGFPE:
      return "F";
    case SIGILL:
      return "I";
    case SIGABRT:
      return "A";
    default:
      return "?";
  }
}

void report(const siginfo_t& signal) { say(letter_of(signal.si_signo)); }

/// Not through a null pointer, which a sanitizer would report first.
void fault() {
  void* const page = ::mmap(nullptr, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile char*>(page) = 1;
}

enum class Handlers { reset, kept };

/// In a child, whose handlers are not a sanitizer's unless they are kept.
Ended in_child(const std::function<void()>& body, Handlers handlers = Handlers::reset) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::alarm(20);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
      if (handlers == Handlers::reset) std::signal(signal, SIG_DFL);
    report_to = ends[1];
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  Ended ended;
  for (char byte = 0; ::read(ends[0], &byte, 1) == 1;) ended.said += byte;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

void expect_end_by(int signal, const std::function<void()>& deed) {
  const auto ended = in_child([&] {
    report_fatal_signals(report);
    deed();
  });
  EXPECT_EQ(ended.signal, signal) << "exit code " << ended.code;
  EXPECT_EQ(ended.said, letter_of(signal));
}

TEST(FatalSignals, AreReportedOnceAndEndTheProcessAsBefore) {
  expect_end_by(SIGSEGV, fault);
  expect_end_by(SIGABRT, [] { std::abort(); });
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    expect_end_by(signal, [=] { std::raise(signal); });
    expect_end_by(signal, [=] { ::kill(::getpid(), signal); });
  }
}

TEST(FatalSignals, AreReportedOnAnyThread) {
  expect_end_by(SIGSEGV, [] { std::thread(fault).join(); });
}

// Its stack is full, so that nothing runs but on another one.
TEST(FatalSignals, AreReportedOnAnAlternativeStack) {
  expect_end_by(SIGSEGV, [] {
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
  });
}

TEST(FatalSignals, LeaveAnEarlierHandlerItsTurn) {
  const auto with_handler = [](int flags, void (*deed)()) {
    return in_child([=] {
      struct sigaction action{};
      action.sa_flags = flags;
      if ((flags & SA_SIGINFO) != 0)
        action.sa_sigaction = [](int, siginfo_t* info, void*) { ::_exit(info->si_code > 0 ? 41 : 42); };
      else
        action.sa_handler = [](int) { ::_exit(43); };
      ::sigaction(SIGSEGV, &action, nullptr);
      report_fatal_signals(report);
      deed();
    });
  };
  for (const auto& [flags, deed, code] : std::vector<std::tuple<int, void (*)(), int>>{
           {SA_SIGINFO, fault, 41}, {SA_SIGINFO, [] { std::raise(SIGSEGV); }, 42}, {0, fault, 43}}) {
    const auto ended = with_handler(flags, deed);
    EXPECT_EQ(ended.code, code);
    EXPECT_EQ(ended.said, "S");
  }
}

#ifdef __SANITIZE_ADDRESS__
TEST(FatalSignals, LeaveASanitizerItsReport) {
  const auto ended = in_child(
      [] {
        ::dup2(report_to, STDERR_FILENO);
        report_fatal_signals(report);
        fault();
      },
      Handlers::kept);
  EXPECT_TRUE(ended.said.starts_with("S")) << ended.said;
  EXPECT_NE(ended.said.find("AddressSanitizer: SEGV"), std::string::npos) << ended.said;
}
#endif

TEST(FatalSignals, ALaterHandlerWins) {
  const auto ended = in_child([] {
    report_fatal_signals(report);
    std::signal(SIGSEGV, [](int) { ::_exit(44); });
    fault();
  });
  EXPECT_EQ(ended.code, 44);
  EXPECT_EQ(ended.said, "");
}

TEST(FatalSignals, AnIgnoredOneStaysIgnored) {
  const auto ended = in_child([] {
    std::signal(SIGFPE, SIG_IGN);
    report_fatal_signals(report);
    std::raise(SIGFPE);
  });
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.said, "");
}

TEST(FatalSignals, AFaultInTheReportEndsTheProcessByTheFirstSignal) {
  const auto ends_with = [](int signal, FatalReport faulty) {
    return in_child([=] {
      report_fatal_signals(faulty);
      std::raise(signal);
    });
  };
  const FatalReport faults = [](const siginfo_t& signal) {
    report(signal);
    fault();
  };
#ifndef __SANITIZE_THREAD__  // which blocks all signals in every handler, so that the kernel ends the process itself
  EXPECT_EQ(ends_with(SIGABRT, faults).signal, SIGABRT);
  EXPECT_EQ(ends_with(SIGBUS, faults).signal, SIGBUS);
#endif
  const auto ended = ends_with(SIGSEGV, faults);
  EXPECT_EQ(ended.signal, SIGSEGV);
  EXPECT_EQ(ended.said, "S");
}

// The second thread's fault must not end the process in the middle of the first one's report.
TEST(FatalSignals, AThreadWaitsForTheReportOfAnother) {
  static int begin[2], begun[2];
  ASSERT_EQ(::pipe(begin), 0);
  ASSERT_EQ(::pipe(begun), 0);
  const auto ended = in_child([] {
    report_fatal_signals([](const siginfo_t& signal) {
      char token = 'x';
      if (::write(begin[1], &token, 1) != 1 || ::read(begun[0], &token, 1) != 1) ::_exit(98);
      ::usleep(20'000);  // in which the other thread's fault would end the process
      report(signal);
    });
    std::thread([] {
      char token = 0;
      if (::read(begin[0], &token, 1) != 1 || ::write(begun[1], &token, 1) != 1) ::_exit(98);
      fault();
    }).detach();
    std::raise(SIGABRT);
  });
  EXPECT_EQ(ended.said, "A");
  EXPECT_TRUE(ended.signal == SIGABRT || ended.signal == SIGSEGV) << ended.signal;
  for (const int fd : {begin[0], begin[1], begun[0], begun[1]}) ::close(fd);
}

}  // namespace
}  // namespace ddp
