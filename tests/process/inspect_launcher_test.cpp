// What ddprun --inspect makes of processes that are no ranks of LibTorch's: families, stopped, silent, foreign ones.

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/inspection_server.hpp"
#include "base/inspection_wire.hpp"
#include "launch/inspect.hpp"
#include "process/launched.hpp"
#include "support/child.hpp"
#include "support/text.hpp"

namespace ddp::test {
namespace {

using ddp::testing::Child;
using ddp::testing::contains;
using Words = std::vector<std::string>;

/// In a child: serves until it is killed.
void serve(InspectionServer::Answer answer) {
  const auto* const server = new InspectionServer(std::move(answer));
  if (!server->trouble().empty()) ::_exit(1);
}

void serve_text(const std::string& text) {
  serve([text](const std::optional<ProcessKey>& about) { return about ? std::string() : text; });
}

struct Shown {
  int code = -1;
  std::string text;  // standard output and error
};

Shown ddprun(Words words) {
  words.insert(words.begin(), DDPRUN);
  Launched job(std::move(words));
  const auto begin = Clock::now();
  const int code = job.finish(8s);
  EXPECT_LT(Clock::now() - begin, 6s) << "it never takes longer than some 5 s";
  return {code, job.text()};
}

Shown inspect(pid_t pid) { return ddprun({"--inspect", std::to_string(pid)}); }

void expect_nobody(const Shown& shown, const std::string& why) {
  EXPECT_EQ(shown.code, 1) << shown.text;
  EXPECT_EQ(std::ranges::count(shown.text, '\n'), 1) << shown.text;
  EXPECT_TRUE(shown.text.starts_with("ddprun: ")) << shown.text;
  EXPECT_TRUE(contains(shown.text, why));
}

std::string described(pid_t pid) { return "process " + std::to_string(pid) + " (launch_tests)"; }

TEST(DdprunInspect, PrintsWhatTheProcessTells) {
  const Child rank([] { serve_text("rank 0 waits\n"); });
  const auto shown = inspect(rank.pid());
  EXPECT_EQ(shown.code, 0);
  EXPECT_EQ(shown.text, "rank 0 waits\n");
}

TEST(DdprunInspect, LooksForRanksAmongWhatTheProcessHasStarted) {
  const Child launcher(
      [] { static const Child wrapper([] { static const Child rank([] { serve_text("rank 0 waits\n"); }); }); });
  EXPECT_EQ(inspect(launcher.pid()).text, "rank 0 waits\n");
}

TEST(DdprunInspect, FindsAProcessByTheNumberOfAnyOfItsThreads) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Child rank([&] {
    serve([&](const auto& about) { return about ? "" : "asked\n"; });
    std::thread([&] {
      const pid_t thread = ::gettid();
      if (::write(ends[1], &thread, sizeof thread) != sizeof thread) ::_exit(1);
      for (;;) ::pause();
    }).detach();
  });
  pid_t thread = 0;
  ASSERT_EQ(::read(ends[0], &thread, sizeof thread), ssize_t{sizeof thread});
  ASSERT_NE(thread, rank.pid());
  EXPECT_EQ(inspect(thread).text, "asked\n");
}

TEST(DdprunInspect, WhatSteersATerminalIsNotPrinted) {
  const Child rank([] { serve_text("a \033[31mlabel\x7f\r, caf\xc3\xa9\n"); });
  EXPECT_EQ(inspect(rank.pid()).text, "a ?[31mlabel??, caf\xc3\xa9\n");
}

TEST(DdprunInspect, AboutAStoppedRankAnotherOfItsJobIsAsked) {
  const Child other_job([] { serve_text("a rank of another job\n"); });
  const Child stopped([] { serve_text("never told\n"); });
  stopped.stop();
  const Child peer([&] {
    serve([pid = stopped.pid()](const std::optional<ProcessKey>& about) -> std::string {
      const bool is_right = about && about->pid == pid && about->pid_namespace == own_process_key().pid_namespace;
      return is_right ? "told by a peer\n" : "";
    });
  });
  const auto shown = inspect(stopped.pid());
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_EQ(shown.text, "ddprun: " + described(stopped.pid()) + " is stopped (kill -CONT " +
                            std::to_string(stopped.pid()) +
                            " lets it go on); another rank of its job answers:\ntold by a peer\n");
}

TEST(DdprunInspect, AStoppedRankThatIsAloneIsNamed) {
  const Child stopped([] { serve_text("never told\n"); });
  stopped.stop();
  expect_nobody(inspect(stopped.pid()), described(stopped.pid()) + " is stopped (kill -CONT");
}

TEST(DdprunInspect, ARankThatIsSilentIsNamedWithinSeconds) {
  const Child silent([] {
    const auto address = inspection::address_of(own_process_key());
    const int listener = inspection::stream_socket().release();
    if (::bind(listener, address.get(), address.length) != 0 || ::listen(listener, 8) != 0) ::_exit(1);
  });
  expect_nobody(inspect(silent.pid()), described(silent.pid()) + " gives no answer");
}

TEST(DdprunInspect, ARefusalIsPassedOn) {
  const Child rank([] { serve([](const auto&) -> std::string { throw std::runtime_error("no memory"); }); });
  expect_nobody(inspect(rank.pid()), described(rank.pid()) + " refuses to tell: no memory");
}

TEST(DdprunInspect, AProcessWithoutDdpIsTold) {
  const Child other([] {});
  expect_nobody(inspect(other.pid()),
                described(other.pid()) + " runs, but neither it nor what it has started is a rank");
}

TEST(DdprunInspect, AProcessThatHasEndedIsTold) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  expect_nobody(inspect(child), described(child) + " has ended");
  ::waitpid(child, nullptr, 0);
  expect_nobody(inspect(child), "there is no process " + std::to_string(child));
}

TEST(DdprunInspect, WrongArgumentsAreNamedInOneLine) {
  const auto expect_refusal = [](const Words& words, const std::string& word) {
    const auto shown = ddprun(words);
    EXPECT_EQ(shown.code, 2) << shown.text;
    EXPECT_EQ(std::ranges::count(shown.text, '\n'), 1) << shown.text;
    EXPECT_TRUE(shown.text.starts_with("ddprun: ")) << shown.text;
    EXPECT_TRUE(contains(shown.text, word));
  };
  for (const auto* const number : {"train", "-5", "0", "12x", "1.5", "", "5000000", "99999999999999999999"})
    expect_refusal({"--inspect", number}, "--inspect");
  expect_refusal({"--inspect"}, "--inspect");
  expect_refusal({"--inspect", "1", "./train"}, "also not ./train");
  expect_refusal({"--inspect=1", "--", "./train"}, "also not ./train");
  for (const Words& flag : {Words{"--nproc-per-node", "1"}, Words{"--master-port", "1"}, Words{"--standalone"},
                            Words{"--shutdown-timeout", "1"}, Words{"--no-python"}}) {
    Words words{"--inspect", "1"};
    words.insert(words.end(), flag.begin(), flag.end());
    expect_refusal(words, flag[0]);
  }
}

// Only root can become somebody else: for others there is no such test.
class DdprunInspectOfAnotherUser : public ::testing::TestWithParam<uid_t> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DdprunInspectOfAnotherUser);
INSTANTIATE_TEST_SUITE_P(AsRoot, DdprunInspectOfAnotherUser,
                         ::testing::ValuesIn(::geteuid() == 0 ? std::vector<uid_t>{65534} : std::vector<uid_t>()));

TEST_P(DdprunInspectOfAnotherUser, IsToldWhomToAskAs) {
  const Child rank([] { serve_text("secret\n"); });
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(::seteuid(GetParam()), 0);
  std::ostringstream out;
  const bool is_answered = launch::inspect(rank.pid(), out);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_FALSE(is_answered);
  EXPECT_EQ(out.str(), "");
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStderr(), " belongs to user 0: ask as that user, or as root"));
}

TEST_P(DdprunInspectOfAnotherUser, IsAnsweredToRoot) {
  const Child rank([] {
    if (::setuid(GetParam()) != 0) ::_exit(1);
    serve_text("rank 0 waits\n");
  });
  EXPECT_EQ(inspect(rank.pid()).text, "rank 0 waits\n");
}

#ifdef DDP_TEST_NAMESPACES
TEST(DdprunInspect, AProcessInAnotherNetworkIsToldHowToAsk) {
  const Child elsewhere([] {
    if (::unshare(CLONE_NEWNET) != 0) ::_exit(1);
    serve_text("never heard\n");
  });
  expect_nobody(inspect(elsewhere.pid()), "nsenter --target " + std::to_string(elsewhere.pid()) + " --net ddprun");
}

// Two processes that both call themselves number 1, as the first of two containers do.
TEST(DdprunInspect, ProcessesInPidNamespacesOfTheirOwnAreToldApart) {
  const auto start_container = [](const std::string& text) {
    return [text] {
      if (::unshare(CLONE_NEWPID) != 0) ::_exit(1);
      static const Child first([&] {
        if (::getpid() != 1) ::_exit(1);
        serve_text(text);
      });
    };
  };
  const Child one(start_container("rank 0\n")), two(start_container("rank 1\n"));
  EXPECT_EQ(inspect(one.pid()).text, "rank 0\n");
  EXPECT_EQ(inspect(two.pid()).text, "rank 1\n");
}
#endif

}  // namespace
}  // namespace ddp::test
