// Ranks that do not come, come twice, contradict each other or ask for what is not there.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<ProcessGroup> join(const Environment& environment, std::chrono::milliseconds timeout = 20s) {
  ProcessGroupOptions options;
  options.environment = environment;
  options.timeout = timeout;
  return init_process_group(options);
}

template <class Kind>
void expect_error(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no exception, expected: " << text;
  } catch (const Kind& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what() << "\nhas not: " << text;
  }
}

void expect_success(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << ": " << outcome.ending() << '\n' << outcome.output;
}

TEST(Start, MissingRanksAreNamedAtTheTimeout) {
  expect_success(observe_ranks(4, [](const Environment& environment) {
    if (environment.rank == 1 || environment.rank == 3) return;
    try {
      join(environment, 1s);
      ADD_FAILURE() << "no exception";
    } catch (const CommError& error) {  // a TimeoutError, or the one of the other rank that waits
      for (const std::string text :
           {"missing ranks 1, 3 of 4, not come to 127.0.0.1:", "they were not started, have died"})
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }));
}

// A socket bound to a free port of the loopback, at which nobody listens.
struct SilentPort {
  int descriptor = -1;
  std::uint16_t port = 0;
};

SilentPort silent_port() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length), 0);
  return {descriptor, ntohs(address.sin_port)};
}

TEST(Start, AMissingRankZeroIsNamedAtTheTimeout) {
  expect_success(observe_ranks(2, [](Environment environment) {
    if (environment.rank == 0) return;
    environment.master_port = silent_port().port;
    expect_error<TimeoutError>([&] { join(environment, 500ms); }, "rank 0 does not serve the store at 127.0.0.1:");
  }));
}

TEST(Start, SomebodyWhoListensAtThePortButNeverAnswersIsNamedAtTheTimeout) {
  expect_success(observe_ranks(2, [](Environment environment) {
    if (environment.rank == 0) return;
    const auto place = silent_port();
    ASSERT_EQ(::listen(place.descriptor, 8), 0);
    environment.master_port = place.port;
    const auto start = std::chrono::steady_clock::now();
    expect_error<TimeoutError>([&] { join(environment, 1s); }, "somebody listens there, but does not answer");
    EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
  }));
}

TEST(Start, AMasterAddressThatDoesNotResolveIsNamedByRankZeroAtOnce) {
  expect_success(observe_ranks(2, [](Environment environment) {
    if (environment.rank == 1) return;
    environment.master_address = "nonexistent.invalid";
    const auto start = std::chrono::steady_clock::now();
    expect_error<ConfigError>([&] { join(environment, 300s); }, "MASTER_ADDR=nonexistent.invalid does not resolve");
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  }));
}

TEST(Start, AMasterAddressOfAnotherHostEndsWithTheMissingRanks) {
  expect_success(observe_ranks(2, [](Environment environment) {
    if (environment.rank == 1) return;
    environment.master_address = "192.0.2.1";  // of a network for documentation
    expect_error<TimeoutError>([&] { join(environment, 1s); }, "missing rank 1 of 2, not come to 192.0.2.1:");
  }));
}

TEST(Start, AClientThatComesBeforeItsServerFindsItSoon) {
  const auto place = silent_port();
  ::close(place.descriptor);  // rank 0 binds it again
  const Gate client_is_there;
  const auto outcomes = observe_ranks(2, [&](Environment environment) {
    environment.master_port = place.port;
    environment.store_socket.reset();
    if (environment.rank == 0) client_is_there.pass();
    if (environment.rank == 1) client_is_there.open();
    const auto start = std::chrono::steady_clock::now();
    join(environment)->barrier();
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  });
  expect_success(outcomes);
}

TEST(Start, RankZeroServesOnTheSocketThatItWasHandedThoughThereMayBeAnAgentsStore) {
  expect_success(observe_ranks(2, [](Environment environment) {
    environment.agent_store = true;
    const auto group = join(environment);
    auto tensor = at::ones({10});
    group->all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<float>(), 20);
  }));
}

TEST(Start, WithoutASocketRankZeroIsAClientOfTheAgentsStore) {
  expect_success(observe_ranks(2, [](Environment environment) {
    if (environment.rank == 1) return;
    environment.agent_store = true;
    environment.store_socket.reset();
    environment.master_port = silent_port().port;
    expect_error<TimeoutError>([&] { join(environment, 1s); }, "rank 0 does not serve the store at 127.0.0.1:");
  }));
}

TEST(Start, ARankThatComesTwiceIsAnErrorOnAllRanks) {
  expect_success(observe_ranks(3, [](Environment environment) {
    if (environment.rank == 2) environment.rank = 1;
    expect_error<ConfigError>([&] { join(environment); }, "rank 1 came twice");
  }));
}

TEST(Start, ADisagreementAboutTheWorldSizeIsAnErrorOnAllRanks) {
  expect_success(observe_ranks(3, [](Environment environment) {
    if (environment.rank == 2) environment.world_size = 4;
    expect_error<ConfigError>([&] { join(environment); }, "the ranks disagree about the world size");
  }));
}

TEST(Start, ADisagreementAboutTheBackendIsAnErrorOnAllRanks) {
  for (const auto* odd : {"auto", "shm"})
    expect_success(observe_ranks(3, [&](const Environment& environment) {
      ::setenv("DDP_BACKEND", environment.rank == 1 ? odd : "gloo", 1);
      const auto start = std::chrono::steady_clock::now();
      expect_error<ConfigError>([&] { join(environment); }, "the ranks have different backends");
      EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
    }));
}

TEST(Start, APortInUseIsAConfigError) {
  expect_success(observe_ranks(2, [](Environment environment) {
    if (environment.rank == 1) return;
    environment.store_socket.reset();  // the socket listens still, so that its port is taken
    expect_error<ConfigError>([&] { join(environment); }, "cannot serve the store at 127.0.0.1:");
  }));
}

TEST(Start, RanksOfSeveralHostsMeetAtTheMastersAddress) {  // as far as one host can tell
  expect_success(observe_ranks(3, [](Environment environment) {
    environment.local_rank = 0;
    environment.local_world_size = environment.rank == 2 ? 0 : 1;
    const auto group = join(environment);
    auto tensor = at::ones({10});
    group->all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<float>(), 30);
  }));
}

TEST(Start, CoresAreSharedBetweenTheRanksOfAHost) {
  expect_success(observe_ranks(2, [](const Environment& environment) {
    ::unsetenv("OMP_NUM_THREADS");
    const auto group = join(environment);
    EXPECT_EQ(at::get_num_threads(), std::max<int>(1, static_cast<int>(std::thread::hardware_concurrency()) / 2));
  }));
}

}  // namespace
}  // namespace ddp::testing
