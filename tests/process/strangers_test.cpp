// At the meeting place: other programs, other jobs, ranks that are there twice, and variables without sense. One
// clear line each, within seconds, and nothing beside it.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>

#include "comm/store_probe.hpp"
#include "ddp/process_group.hpp"
#include "ddp/run.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kSoon = 5s;

std::shared_ptr<ProcessGroup> join(const Environment& environment, std::chrono::milliseconds timeout = 300s) {
  ProcessGroupOptions options;
  options.environment = environment;
  options.timeout = timeout;
  return init_process_group(options);
}

/// A rank as a user's program; its only words are those about its end.
void as_program(const std::function<void()>& body) {
  ::setenv("DDP_LOG_LEVEL", "warn", 1);
  std::exit(run(body));
}

/// Exactly one line, which has `text`.
void expect_one_line(const Outcome& outcome, const std::string& text) {
  EXPECT_EQ(outcome.exit_code, 1) << outcome.ending();
  EXPECT_TRUE(contains(outcome.output, text));
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
}

/// Listens on a free port of the loopback, and answers each connection with `words` if there are any.
class OtherProgram {
 public:
  explicit OtherProgram(std::string words) : words_(std::move(words)), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
    if (words_.empty()) return;
    thread_ = std::thread([this] {
      for (int one = 0; (one = ::accept(socket_, nullptr, nullptr)) >= 0; ::close(one))
        ::send(one, words_.data(), words_.size(), MSG_NOSIGNAL);
    });
  }
  ~OtherProgram() {
    ::shutdown(socket_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    ::close(socket_);
  }
  std::uint16_t port() const { return port_; }

 private:
  std::string words_;
  int socket_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

void expect_both_say(const std::string& words, const std::string& rank_0, const std::string& rank_1) {
  const auto start = Clock::now();
  const auto outcomes = observe_ranks(2, [&](Environment environment) {
    const OtherProgram other(words);  // one for each rank
    environment.master_port = other.port();
    environment.store_socket.reset();
    as_program([&] { join(environment, environment.rank == 0 ? 300s : 1s); });
  });
  EXPECT_LT(Clock::now() - start, kSoon);
  expect_one_line(outcomes[0], rank_0);
  expect_one_line(outcomes[1], rank_1);
}

TEST(Strangers, APortOfASilentProgramIsNamedByEveryRank) {  // fault R58
  expect_both_say("", "the port is in use by another program", "somebody listens there, but does not answer");
}

TEST(Strangers, APortOfAProgramThatAnswersIsNamedByEveryRank) {
  for (const std::string words : {"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n"})
    expect_both_say(words, "the port is in use by another program", "but another kind of program");
}

TEST(Strangers, APortOfAProgramThatHangsUpIsNamedByEveryRank) {
  expect_both_say("x", "the port is in use by another program", "somebody listens there, but closes the connection");
}

bool answers(std::uint16_t port) {
  return comm::ask_store("127.0.0.1", port, Clock::now() + 1s).kind == comm::StoreAnswer::Kind::serves;
}

/// A port that was free a moment ago.
std::uint16_t free_port() { return OtherProgram("").port(); }

TEST(Strangers, TwoRanksZeroAreNamedByBoth) {
  const auto port = free_port();
  const auto start = Clock::now();
  const auto outcomes = observe_ranks(2, [&](Environment environment) {
    environment.rank = 0;
    environment.master_port = port;
    environment.store_socket.reset();
    as_program([&] { join(environment); });
  });
  EXPECT_LT(Clock::now() - start, kSoon);
  for (const auto& outcome : outcomes) expect_one_line(outcome, "rank 0 came twice: ");
}

// A rank 0 and a rank 1 of another job come while rank 0 waits for its rank 1.
TEST(Strangers, RanksOfAnotherJobAreTurnedAwayAndDoNotDisturb) {
  const auto port = free_port();
  const Gate served, strangers_have_gone;
  const auto start = Clock::now();
  const auto outcomes = observe_ranks(4, [&](Environment environment) {
    const bool is_stranger = environment.rank >= 2;
    environment.rank %= 2;
    environment.world_size = environment.local_world_size = 2;
    environment.job_id = is_stranger ? "blue" : "green";
    environment.master_port = port;
    environment.store_socket.reset();
    as_program([&] {
      if (is_stranger) {
        served.pass();
        try {
          join(environment);
        } catch (...) {
          strangers_have_gone.open();
          throw;
        }
      }
      if (environment.rank == 0) {
        std::thread([&] {  // the store is there once somebody answers
          while (!answers(port)) std::this_thread::yield();
          served.open(2);
        })
            .detach();
      } else {
        strangers_have_gone.pass();
        strangers_have_gone.pass();
      }
      join(environment)->barrier();
    });
  });
  EXPECT_LT(Clock::now() - start, kSoon);
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].exit_code, 0) << outcomes[rank].output;
    EXPECT_EQ(outcomes[rank].output, "");
    expect_one_line(outcomes[rank + 2], "is that of job \"green\", this is a rank of job \"blue\"");
  }
}

TEST(Strangers, AMissingRankIsNamedByAllWhoCameAfterALineThatTheyWait) {  // fault R60
  const auto outcomes = observe_ranks(3, [](const Environment& environment) {
    if (environment.rank == 2) std::exit(0);
    as_program([&] { join(environment, 3500ms); });
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto& output = outcomes[static_cast<std::size_t>(rank)].output;
    EXPECT_TRUE(contains(output, "missing rank 2 of 3, not come to 127.0.0.1:"));
    EXPECT_EQ(output.find("waiting at 127.0.0.1:") != std::string::npos, rank == 0)
        << "one says it for all: " << output;
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), rank == 0 ? 2 : 1) << output;
  }
}

TEST(Strangers, AnAddressWhereNobodyAnswersIsSaidAfterSecondsAndAtTheTimeout) {
  const std::vector<std::string> addresses{"192.0.2.77", "nonexistent.invalid"};
  const auto outcomes = observe_ranks(2, [&](Environment environment) {
    environment.master_address = addresses[static_cast<std::size_t>(environment.rank)];
    environment.rank = 1;  // of a job each
    as_program([&] { join(environment, 3500ms); });
  });
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto& output = outcomes[i].output;
    EXPECT_TRUE(contains(output, "rank 0 does not serve the store at " + addresses[i] + ':'));
    // A resolver may think for longer than this timeout.
    const bool has_waited = output.find("waiting for rank 0 at " + addresses[i] + ':') != std::string::npos;
    EXPECT_TRUE(has_waited || i == 1) << output;
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), has_waited ? 2 : 1) << output;
  }
}

TEST(Strangers, VariablesWithoutSenseAreOneLineAtOnce) {
  using Variables = std::map<std::string, std::string>;
  const Variables good{{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  const std::vector<std::pair<Variables, std::string>> wrong{
      {{{"MASTER_PORT", "abc"}}, "MASTER_PORT=abc is not a whole number"},
      {{{"MASTER_PORT", "0"}}, "MASTER_PORT=0 must be at least 1"},
      {{{"RANK", "5"}}, "RANK=5 is none of a world of 3 ranks"},
      {{{"RANK", "-1"}}, "RANK=-1 must be at least 0"},
      {{{"WORLD_SIZE", "0"}}, "WORLD_SIZE=0 must be at least 1"},
      {{{"MASTER_ADDR", ""}}, "MASTER_ADDR is missing"},
      {{{"MASTER_PORT", ""}}, "MASTER_PORT is missing"},
      {{{"WORLD_SIZE", ""}}, "WORLD_SIZE is missing"},
      {{{"RANK", ""}}, "RANK is missing"},
      {{{"DDP_TIMEOUT", "soon"}}, "DDP_TIMEOUT=soon is no number of seconds"},
  };
  const auto start = Clock::now();
  const auto outcomes = observe_ranks(static_cast<int>(wrong.size()), [&](const Environment& environment) {
    for (const auto& [name, value] : good) ::setenv(name.c_str(), value.c_str(), 1);
    for (const auto& [name, value] : wrong[static_cast<std::size_t>(environment.rank)].first)
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
    as_program([] { init_process_group(); });
  });
  for (std::size_t i = 0; i < wrong.size(); ++i) expect_one_line(outcomes[i], wrong[i].second);
  EXPECT_LT(Clock::now() - start, kSoon);
}

}  // namespace
}  // namespace ddp::testing
