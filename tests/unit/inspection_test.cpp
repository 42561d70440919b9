#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/inspection_client.hpp"
#include "base/inspection_server.hpp"
#include "base/inspection_wire.hpp"
#include "support/child.hpp"

namespace ddp {
namespace {

using namespace std::chrono_literals;
using inspection::Clock;
using testing::Child;
using Kind = InspectionReply::Kind;

// About another process it says nothing, as a rank of another job: a test beside this one may ask.
InspectionServer::Answer says(const std::string& text) {
  return [text](const std::optional<ProcessKey>& about) { return about ? std::string() : text; };
}

InspectionReply ask(const std::optional<ProcessKey>& about = {}, std::chrono::milliseconds limit = 4s) {
  return ask_process({.whom = own_process_key(), .owner = ::geteuid(), .about = about, .limit = limit});
}

void expect_answer(const std::string& text) {
  const auto reply = ask();
  EXPECT_EQ(reply.kind, Kind::answer);
  EXPECT_EQ(reply.text, text);
}

/// A client that does only what the test says.
class RawClient {
 public:
  explicit RawClient(const ProcessKey& server = own_process_key()) : socket_(inspection::stream_socket()) {
    const auto address = inspection::address_of(server);
    if (::connect(socket_.get(), address.get(), address.length) != 0) throw std::runtime_error("connect");
  }
  void say(const std::string& text) const { ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL); }
  /// Waits until the server has read what was said.
  void wait_until_heard() const {
    for (int unread = 1; unread > 0 && ::ioctl(socket_.get(), SIOCOUTQ, &unread) == 0;) std::this_thread::yield();
  }
  /// All until the server hangs up, or "(late)" after 4 s.
  std::string hear() const {
    std::string text;
    std::array<char, 256> buffer;
    while (inspection::wait_for(socket_.get(), POLLIN, Clock::now() + 4s)) {
      const auto size = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (size <= 0) return text;
      text.append(buffer.data(), static_cast<std::size_t>(size));
    }
    return "(late)";
  }

 private:
  Descriptor socket_;
};

/// The exit code of a forked child.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(InspectionServer, TellsWhoeverAsks) {
  const InspectionServer server(says("rank 0 waits\nrank 1 does not\n"));
  EXPECT_EQ(server.trouble(), "");
  for (int i = 0; i < 3; ++i) expect_answer("rank 0 waits\nrank 1 does not\n");
}

TEST(InspectionServer, LearnsWhichProcessTheQuestionIsAbout) {
  const ProcessKey rank{.pid_namespace = 7, .pid = 11}, stranger{.pid_namespace = 8, .pid = 11};
  const InspectionServer server(
      [&](const std::optional<ProcessKey>& about) -> std::string { return about == rank ? "one of ours" : ""; });
  EXPECT_EQ(ask(rank).text, "one of ours");
  EXPECT_EQ(ask(stranger).kind, Kind::other_job);
}

TEST(InspectionServer, LongAnswersArriveWhole) {
  std::string text(std::size_t{5} << 20, 'x');
  text.back() = 'y';
  const InspectionServer server(says(text));
  EXPECT_TRUE(ask().text == text);
}

TEST(InspectionServer, AnExceptionIsARefusalWithItsText) {
  const InspectionServer server([](const auto&) -> std::string { throw std::runtime_error("no memory"); });
  for (int i = 0; i < 2; ++i) {
    const auto reply = ask();
    EXPECT_EQ(reply.kind, Kind::refused);
    EXPECT_EQ(reply.text, "no memory");
  }
}

TEST(InspectionServer, AClientThatSaysNothingKeepsTheNextWaitingTwoSecondsAtMost) {
  const InspectionServer server(says("here"));
  const RawClient silent, half;
  half.say("ddp-insp");
  const auto begin = Clock::now();
  silent.hear();
  EXPECT_LT(Clock::now() - begin, 2s);
  expect_answer("here");
}

TEST(InspectionServer, AClientThatReadsNothingKeepsTheNextWaitingTwoSecondsAtMost) {
  const std::string more_than_a_socket_holds(std::size_t{4} << 20, 'x');
  const InspectionServer server(says(more_than_a_socket_holds));
  const RawClient deaf;
  deaf.say("ddp-inspect 1 any\n");
  EXPECT_EQ(ask({}, 3s).kind, Kind::answer);
}

TEST(InspectionServer, AClientThatHangsUpDisturbsNobody) {
  const InspectionServer server(says(std::string(std::size_t{1} << 20, 'x')));
  for (const auto* const words : {"", "ddp-inspect 1 a", "ddp-inspect 1 any\n"}) RawClient().say(words);
  EXPECT_EQ(ask().text.size(), std::size_t{1} << 20);
}

TEST(InspectionServer, TwoClientsAtOnceAreBothAnswered) {
  const InspectionServer server(says("here"));
  std::thread other([] {
    for (int i = 0; i < 20; ++i) expect_answer("here");
  });
  for (int i = 0; i < 20; ++i) expect_answer("here");
  other.join();
}

TEST(InspectionServer, WhatIsNoQuestionGetsALineThatSaysSo) {
  const InspectionServer server(says("here"));
  const auto reply_to = [](const std::string& words) {
    const RawClient client;
    client.say(words);
    return client.hear();
  };
  const std::string unknown = "error no question of this version's ddprun --inspect\n";
  EXPECT_EQ(reply_to("GET / HTTP/1.0\r\n\r\n"), unknown);
  EXPECT_EQ(reply_to("ddp-inspect 2 any\n"), unknown);
  EXPECT_EQ(reply_to("\n"), unknown);
  for (const auto* const whom : {"", "11", "7-", "-11", "7-0", "7--1", "7-11 "})
    EXPECT_EQ(reply_to("ddp-inspect 1 " + std::string(whom) + "\n"), "error no process's key\n") << whom;
  EXPECT_EQ(reply_to(std::string(100'000, 'x')), "") << "and no newline";
  expect_answer("here");
}

TEST(InspectionServer, EndsAtOnceAlsoWithAClientThatSaysNothing) {
  std::optional<InspectionServer> server(std::in_place, says("here"));
  const RawClient silent, waits_in_line;
  silent.say("ddp");
  silent.wait_until_heard();
  const auto begin = Clock::now();
  server.reset();
  EXPECT_LT(Clock::now() - begin, 500ms);
  EXPECT_EQ(silent.hear(), "");
  EXPECT_EQ(ask().kind, Kind::nobody);
}

TEST(InspectionServer, IsTheOnlyOneOfItsProcess) {
  std::optional<InspectionServer> first(std::in_place, says("the first"));
  {
    const InspectionServer second(says("the second"));
    EXPECT_NE(second.trouble(), "");
  }
  expect_answer("the first");
  first.reset();
  const InspectionServer third(says("the third"));
  EXPECT_EQ(third.trouble(), "");
  expect_answer("the third");
}

TEST(InspectionServer, SaysWhyItCannotServeAndDoesNoHarm) {
  const int code = in_child([] {
    const auto address = inspection::address_of(own_process_key());
    const auto other = inspection::stream_socket();
    if (::bind(other.get(), address.get(), address.length) != 0) return 2;
    const InspectionServer server(says("here"));
    return server.trouble().empty() ? 1 : 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(InspectionServer, GivesEverythingBack) {
  const auto held = [] {
    const auto entries = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
    };
    return std::pair(entries("/proc/self/fd"), entries("/proc/self/task"));
  };
  std::thread([] {}).join();  // a sanitizer's own thread begins with the program's first one
  const auto before = held();
  for (int i = 0; i < 10; ++i) {
    const InspectionServer server(says("here"));
    expect_answer("here");
  }
  for (const auto limit = Clock::now() + 4s; held() != before && Clock::now() < limit;) {
  }  // a thread that ends is listed for a moment longer
  EXPECT_EQ(held(), before);
}

TEST(InspectionServer, ThreadHasANameAndLeavesSignalsToTheProgram) {
  const InspectionServer server(says("here"));
  expect_answer("here");  // so that it runs
  std::string blocked;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool is_it = false;
    for (std::string line; std::getline(status, line);) {
      if (line == "Name:\tddp-inspect") is_it = true;
      if (is_it && line.starts_with("SigBlk:")) blocked = line.substr(line.find('\t') + 1);
    }
  }
  ASSERT_NE(blocked, "") << "no thread of that name";
  const auto mask = std::stoull(blocked, nullptr, 16);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD})
    EXPECT_NE(mask & (1ULL << (signal - 1)), 0) << signal;
}

TEST(InspectionServer, AForkedChildDoesNotKeepTheNameTaken) {
  std::optional<InspectionServer> server(std::in_place, says("here"));
  const Child child([] {});
  server.emplace(says("here again"));
  EXPECT_EQ(server->trouble(), "");
  expect_answer("here again");
}

TEST(InspectionServer, AForkedChildsCopyEndsWithoutTheServer) {
  std::optional<InspectionServer> server(std::in_place, says("here"));
  EXPECT_TRUE(server->is_of_this_process());
  const Child child([&] {
    if (server->is_of_this_process()) ::_exit(1);
    server.reset();
  });
  expect_answer("here");
}

// Only root can become somebody else: for others there is no such test.
class InspectionOfAnotherUser : public ::testing::TestWithParam<uid_t> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(InspectionOfAnotherUser);
INSTANTIATE_TEST_SUITE_P(AsRoot, InspectionOfAnotherUser,
                         ::testing::ValuesIn(::geteuid() == 0 ? std::vector<uid_t>{65534} : std::vector<uid_t>()));

TEST_P(InspectionOfAnotherUser, IsAnsweredByNobody) {
  const InspectionServer server(says("secret"));
  const auto heard = [whom = own_process_key()] {
    const RawClient client(whom);
    client.say("ddp-inspect 1 any\n");
    return client.hear();
  };
  EXPECT_NE(heard(), "");
  EXPECT_EQ(in_child([&] { return ::seteuid(GetParam()) == 0 && heard().empty() ? 0 : 1; }), 0);
  EXPECT_NE(heard(), "") << "it goes on for its own user";
}

TEST_P(InspectionOfAnotherUser, IsAnsweredWhereRootAsks) {
  ASSERT_EQ(::seteuid(GetParam()), 0);
  const InspectionServer server(says("here"));
  const InspectionQuestion question{.whom = own_process_key(), .owner = GetParam()};
  const int code = in_child([&] { return ::seteuid(0) == 0 && ask_process(question).text == "here" ? 0 : 1; });
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(code, 0);
}

TEST(AskProcess, BelievesOnlyTheProcesssOwner) {
  const InspectionServer server(says("here"));
  EXPECT_EQ(ask_process({.whom = own_process_key(), .owner = ::geteuid() + 1}).kind, Kind::nobody);
}

TEST(AskProcess, GivesUpOnAProcessThatDoesNotAnswer) {
  const auto listener = inspection::stream_socket();
  const auto address = inspection::address_of(own_process_key());
  ASSERT_EQ(::bind(listener.get(), address.get(), address.length), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const auto begin = Clock::now();
  EXPECT_EQ(ask({}, 100ms).kind, Kind::silent);
  EXPECT_EQ(ask({}, 100ms).kind, Kind::silent) << "now there is no room for another one";
  EXPECT_LT(Clock::now() - begin, 2s);
}

TEST(AskProcess, RefusesAnAnswerThatCannotBeRead) {
  const auto listener = inspection::stream_socket();
  const auto address = inspection::address_of(own_process_key());
  ASSERT_EQ(::bind(listener.get(), address.get(), address.length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  for (const std::string answer :
       {"", "answer\n", "answer 5\nabc", "answer -1\n", "answer 5x\nabcde", "answer 99999999999\n", "hello\n"}) {
    std::thread server([&] {
      inspection::wait_for(listener.get(), POLLIN, Clock::now() + 4s);
      const Descriptor client(::accept(listener.get(), nullptr, nullptr));
      if (client.get() >= 0) ::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    });
    EXPECT_EQ(ask().kind, Kind::refused) << answer;
    server.join();
  }
}

TEST(AskProcess, FindsThoseThatCanBeAsked) {
  const auto is_listed = [] {
    const auto keys = inspected_processes();
    return std::count(keys.begin(), keys.end(), own_process_key());
  };
  EXPECT_EQ(is_listed(), 0);
  const InspectionServer server(says("here"));
  expect_answer("here");
  EXPECT_EQ(is_listed(), 1);
}

TEST(ProcessKey, IsReadBackFromItsText) {
  const auto key = own_process_key();
  EXPECT_EQ(key.pid, ::getpid());
  EXPECT_NE(key.pid_namespace, 0);
  EXPECT_EQ(ProcessKey::parsed(key.text()), key);
}

}  // namespace
}  // namespace ddp
