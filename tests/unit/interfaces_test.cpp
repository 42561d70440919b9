#include "comm/interfaces.hpp"

#include <gtest/gtest.h>

#include <random>

#include "ddp/error.hpp"
#include "support/text.hpp"

namespace ddp::comm {
namespace {

using ddp::testing::contains;

const std::vector<InterfaceAddress> kHost{{"lo", "127.0.0.1", false, true},
                                          {"lo", "::1", true, true},
                                          {"docker0", "172.17.0.1"},
                                          {"eth0", "fd00::2", true},
                                          {"eth0", "10.0.0.5"},
                                          {"ib0", "10.1.0.5"},
                                          {"tun0", ""},
                                          {"veth12", "172.18.0.1"}};
const InterfaceChoice kOneHost{"127.0.0.1", false};
const InterfaceChoice kManyHosts{"10.0.0.5", true};

/// "eth0=10.0.0.5 ib0=10.1.0.5 "
std::string chosen(const std::string& value, const InterfaceChoice& choice) {
  std::string text;
  for (const auto& one : chosen_interfaces(value, kHost, choice)) text += one.interface + '=' + one.address + ' ';
  return text;
}

void expect_refusal(const std::string& value, const InterfaceChoice& choice, const std::string& text) {
  try {
    ADD_FAILURE() << value << " chose " << chosen(value, choice);
  } catch (const ConfigError& error) {
    EXPECT_TRUE(contains(error.what(), "GLOO_SOCKET_IFNAME=" + value + ": " + text));
    EXPECT_TRUE(contains(error.what(),
                         "lo (127.0.0.1, ::1), docker0 (172.17.0.1), eth0 (fd00::2, 10.0.0.5), ib0 (10.1.0.5), "
                         "tun0 (no address), veth12 (172.18.0.1)"));
  }
}

TEST(Interfaces, NamesStandForOneAddressEachOfTheFirstFamilyThereIs) {
  EXPECT_EQ(chosen("eth0", kOneHost), "eth0=10.0.0.5 ");
  EXPECT_EQ(chosen("eth0,lo", kOneHost), "eth0=10.0.0.5 lo=127.0.0.1 ");
  EXPECT_EQ(chosen(" ib0 ,, eth0", kManyHosts), "ib0=10.1.0.5 eth0=10.0.0.5 ");
}

TEST(Interfaces, AddressesAreTakenInEveryNotation) {
  EXPECT_EQ(chosen("10.1.0.5", kManyHosts), "ib0=10.1.0.5 ");
  EXPECT_EQ(chosen("fd00:0:0::2", kManyHosts), "eth0=fd00::2 ");
  EXPECT_EQ(chosen("::1", kOneHost), "lo=::1 ");
  EXPECT_EQ(chosen("127.0.0.9", kOneHost), "lo=127.0.0.9 ");
}

TEST(Interfaces, AnExclusionKeepsTheUsualAddressWhereItRemains) {
  EXPECT_EQ(chosen("^docker", kOneHost), "lo=127.0.0.1 ");
  EXPECT_EQ(chosen("^docker,veth", kManyHosts), "eth0=10.0.0.5 ");
  EXPECT_EQ(chosen("^docker,^veth", kManyHosts), "eth0=10.0.0.5 ");
}

TEST(Interfaces, ElseTheFirstOtherOneThatIsNoLoopback) {
  EXPECT_EQ(chosen("^lo,docker", kOneHost), "eth0=10.0.0.5 ");
  EXPECT_EQ(chosen("^docker,veth,eth", kManyHosts), "ib0=10.1.0.5 ");
  EXPECT_EQ(chosen("^docker,veth,eth,ib", kOneHost), "lo=127.0.0.1 ");
}

TEST(Interfaces, WhatIsNotThereIsRefusedWithAListOfWhatIs) {
  expect_refusal("nosuch0", kOneHost, "there is no interface nosuch0");
  expect_refusal("eth0,nosuch0", kOneHost, "there is no interface nosuch0");
  expect_refusal("10.9.9.9", kOneHost, "10.9.9.9 is no address of this host");
  expect_refusal("tun0", kOneHost, "interface tun0 has no address");
  expect_refusal("eth", kOneHost, "there is no interface eth");
  expect_refusal(" , ", kOneHost, "it names nothing");
  expect_refusal("^", kOneHost, "it names nothing after the ^");
  expect_refusal("eth0,^lo", kOneHost, "it names interfaces both to use and, after ^, not to use");
  expect_refusal("^lo,docker,eth,ib,veth", kOneHost, "it excludes every interface that has an address");
}

TEST(Interfaces, ALoopbackIsRefusedWhereRanksAreOnOtherHosts) {
  expect_refusal("lo", kManyHosts, "lo (127.0.0.1) is a loopback, which ranks on other hosts cannot reach");
  expect_refusal("eth0,::1", kManyHosts, "lo (::1) is a loopback");
  expect_refusal("^docker,eth,ib,veth", kManyHosts, "it excludes every interface that has an address which other");
}

TEST(Interfaces, AnyValueIsAChoiceOrARefusal) {
  std::mt19937 random(62);
  const std::string letters = "^,. :=%loethdocker0127fd/\xff";
  for (int round = 0; round < 20000; ++round) {
    std::string value(1 + random() % 24, ' ');
    for (char& letter : value) letter = letters[random() % letters.size()];
    try {
      for (const auto& one : chosen_interfaces(value, kHost, round % 2 == 0 ? kOneHost : kManyHosts))
        EXPECT_FALSE(one.address.empty()) << value;
    } catch (const ConfigError&) {
    }
  }
}

TEST(Interfaces, ThisHostHasItsLoopback) {
  bool found = false;
  for (const auto& one : host_interfaces()) found = found || (one.address == "127.0.0.1" && one.is_loopback);
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace ddp::comm
