#pragma once
/// networks.hpp: networks of a test's own. Needs the right to make network namespaces.

#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "support/own_network.hpp"
#include "support/ranks.hpp"
#include "support/shared.hpp"

namespace ddp::testing {

/// The port may be fixed, for the network is the test's alone.
inline Environment at_address(Environment environment, const std::string& address) {
  environment.master_address = address;
  environment.master_port = 29500;
  environment.store_socket.reset();
  return environment;
}

/// Ranks 0 and 1 in a network each, 10.8.0.1 and 10.8.0.2, that have one cable between them; their host's name is the
/// same.
inline std::vector<Outcome> on_two_networks(const std::function<void(const Environment&)>& body) {
  const Shared<std::atomic<pid_t>> other;
  const Gate other_is_there, cable_is_there;
  return observe_ranks(2, [&](const Environment& environment) {
    enter_new_network();
    if (environment.rank == 0) {
      other_is_there.pass();
      shell("ip link add cable0 type veth peer name cable1 netns " + std::to_string(*other) +
            "; ip addr add 10.8.0.1/24 dev cable0; ip link set cable0 up");
      cable_is_there.open();
    } else {
      *other = ::getpid();
      other_is_there.open();
      cable_is_there.pass();
      shell("ip addr add 10.8.0.2/24 dev cable1; ip link set cable1 up");
    }
    auto own = at_address(environment, "10.8.0.1");
    own.local_rank = 0;
    own.local_world_size = 1;
    body(own);
  });
}

}  // namespace ddp::testing
