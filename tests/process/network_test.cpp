// Start-up in networks of the tests' own: interfaces, IPv6, two hosts. Needs the right to make network namespaces.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>

#include "ddp/process_group.hpp"
#include "support/networks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

constexpr const char* kInterfaces =
    "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up;"
    "ip link add eth7 type bridge; ip addr add 10.7.0.1/24 dev eth7;"
    "ip -6 addr add fd07::1/64 dev eth7 nodad; ip link set eth7 up";

void expect_success(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << ": " << outcome.ending() << '\n' << outcome.output;
}

/// Runs `body` in a process that has a network of its own, set up by `commands`.
void in_network(const std::string& commands, const std::function<void()>& body) {
  expect_success(observe_ranks(1, [&](const Environment&) {
    enter_new_network();
    if (!commands.empty()) shell(commands);
    body();
  }));
}

std::string reduce_over(const Environment& environment, const std::string& backend = "gloo") {
  try {
    ProcessGroupOptions options;
    options.backend = backend;
    options.environment = environment;
    options.timeout = 15s;
    const auto group = init_process_group(options);
    auto tensor = at::ones({1000});
    group->all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<float>(), 1000 * environment.world_size);
    group->shutdown();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// What two ranks print on the way, in the sense of rank and text.
std::vector<Outcome> two_ranks(const std::string& address, const std::string& interfaces,
                               const std::string& backend = "gloo") {
  return observe_ranks(2, [&](const Environment& environment) {
    if (!interfaces.empty()) ::setenv("GLOO_SOCKET_IFNAME", interfaces.c_str(), 1);
    const auto error = reduce_over(at_address(environment, address), backend);
    if (!error.empty()) std::fprintf(stderr, "error: %s\n", error.c_str());
  });
}

void expect_chosen(const std::string& interfaces, const std::vector<std::string>& lines) {
  ::setenv("DDP_LOG_SUBSYS", "init", 1);
  const auto outcomes = two_ranks("127.0.0.1", interfaces);
  expect_success(outcomes);
  for (const auto& outcome : outcomes) {
    EXPECT_FALSE(contains(outcome.output, "error: ")) << outcome.output;
    for (const auto& line : lines) EXPECT_TRUE(contains(outcome.output, line)) << interfaces;
  }
}

TEST(Network, TheDataGoesOverTheInterfacesThatTheVariableChooses) {
  in_network(kInterfaces, [] {
    expect_chosen("lo", {"interface lo (GLOO_SOCKET_IFNAME), address 127.0.0.1"});
    expect_chosen("eth7", {"interface eth7 (GLOO_SOCKET_IFNAME), address 10.7.0.1"});
    expect_chosen("fd07::1", {"interface eth7 (GLOO_SOCKET_IFNAME), address fd07::1"});
    expect_chosen("eth7,lo", {"address 10.7.0.1", "address 127.0.0.1"});
    expect_chosen("127.0.0.1", {"interface lo (GLOO_SOCKET_IFNAME), address 127.0.0.1"});
    expect_chosen("::1", {"interface lo (GLOO_SOCKET_IFNAME), address ::1"});
    expect_chosen("^docker", {"interface lo (GLOO_SOCKET_IFNAME), address 127.0.0.1"});
    expect_chosen("^docker,lo", {"interface eth7 (GLOO_SOCKET_IFNAME), address 10.7.0.1"});
    expect_chosen("", {"interface of this host, address 127.0.0.1"});
  });
}

TEST(Network, AWrongChoiceNamesTheInterfacesOnEveryRank) {
  in_network(kInterfaces, [] {
    for (const std::string value : {"nosuch0", "^lo,docker,eth"}) {
      for (const auto& outcome : two_ranks("127.0.0.1", value))
        EXPECT_TRUE(contains(outcome.output, "lo (127.0.0.1, ::1), docker0 (172.17.0.1), eth7 (10.7.0.1, fd07::1)"));
    }
  });
}

// Every way of naming this host, with what must stand on the ranks' outputs.
void expect_silent_meeting(const std::string& address) {
  ::setenv("DDP_LOG_LEVEL", "warn", 1);
  const auto outcomes = two_ranks(address, "", "auto");
  expect_success(outcomes);
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.output, "") << address;
}

TEST(Network, RanksMeetAtEveryNameOfTheirHostWithoutAWord) {  // fault R61
  in_network(kInterfaces, [] {
    for (const auto* address : {"localhost", "127.0.0.1", "::1", "10.7.0.1", "fd07::1"}) expect_silent_meeting(address);
    std::array<char, 256> name{};
    ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
    expect_silent_meeting(name.data());
  });
}

TEST(Network, WithoutIpv6OnlyItsOwnAddressIsAnError) {
  in_network("sysctl -qw net.ipv6.conf.all.disable_ipv6=1", [] {
    for (const auto* address : {"localhost", "127.0.0.1"}) expect_silent_meeting(address);
    const auto start = std::chrono::steady_clock::now();
    for (const auto& outcome : two_ranks("::1", "")) {
      EXPECT_TRUE(contains(outcome.output, "MASTER_ADDR=::1, but this host has no IPv6")) << outcome.output;
      EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
  });
}

void on_two_hosts(const std::function<void(const Environment&)>& body) { expect_success(on_two_networks(body)); }

TEST(Network, RanksOnTwoHostsFindTheWayBetweenThem) {
  on_two_hosts([](const Environment& environment) { EXPECT_EQ(reduce_over(environment), ""); });
}

TEST(Network, AnExclusionOnTwoHostsLeavesTheWayBetweenThem) {
  on_two_hosts([](const Environment& environment) {
    ::setenv("GLOO_SOCKET_IFNAME", "^docker,lo", 1);
    EXPECT_EQ(reduce_over(environment), "");
  });
}

TEST(Network, ALoopbackIsRefusedWhenTheOtherRanksAreElsewhere) {
  on_two_hosts([](Environment environment) {
    ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
    // Nobody told rank 1 how many ranks its host has: it knows from MASTER_ADDR.
    if (environment.rank == 1) environment.local_world_size = 0;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(contains(reduce_over(environment), "is a loopback, which ranks on other hosts cannot reach"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  });
}

TEST(Network, HostsWithDifferentNumbersOfAddressesAreAnError) {
  on_two_hosts([](const Environment& environment) {
    ::setenv("GLOO_SOCKET_IFNAME", environment.rank == 0 ? "cable0" : "cable1,10.8.0.2", 1);
    EXPECT_TRUE(contains(reduce_over(environment),
                         "this rank uses 2 addresses (IPv4, IPv4), the group's rank 0 one address (IPv4)"));
  });
}

}  // namespace
}  // namespace ddp::testing
