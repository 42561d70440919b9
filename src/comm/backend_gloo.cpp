// Gloo's headers are Debian's, its code is LibTorch's: no gloo type is made or derived from here.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <csignal>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "comm/backend.hpp"
#include "comm/interfaces.hpp"
#include "comm/own_address.hpp"
#include "ddp/error.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using c10d::ProcessGroupGloo;

struct Route {
  std::string interface;  // in words
  std::string address;    // empty: that of this host's name
};

std::vector<Route> routes_of(const Environment& environment) {
  const auto usual = own_address(environment);
  const char* const value = std::getenv("GLOO_SOCKET_IFNAME");
  if (value == nullptr || *value == '\0') return {{"of this host", usual}};
  std::vector<Route> routes;
  for (auto& one : chosen_interfaces(value, host_interfaces(), {usual, peers_are_remote(environment)}))
    routes.push_back({one.interface + " (GLOO_SOCKET_IFNAME)", one.address});
  return routes;
}

std::string families_of(const std::vector<Route>& routes) {
  std::string text = routes.size() == 1 ? "one address (" : std::to_string(routes.size()) + " addresses (";
  for (const auto& route : routes)
    text += (route.address.empty()                          ? "?"
             : route.address.find(':') == std::string::npos ? "IPv4"
                                                            : "IPv6") +
            std::string(&route == &routes.back() ? ")" : ", ");
  return text;
}

// Gloo pairs the ranks' first addresses, their second ones, and so on: it would wait for a second one for
// ever, and cannot connect one family to the other.
void require_same_families(const BackendSetup& setup, const std::vector<Route>& routes) {
  const std::string key = "gloo_addresses";
  const auto own = families_of(routes);
  if (setup.environment.rank == 0) return setup.store->set(key, own);
  const auto first = setup.store->get_to_str(key);
  if (first == own || own.find('?') != std::string::npos || first.find('?') != std::string::npos) return;
  throw ConfigError({}, "gloo", "this rank uses " + own + ", the group's rank 0 " + first,
                    "give GLOO_SOCKET_IFNAME as many interfaces of the same families on every host");
}

void add_devices(ProcessGroupGloo::Options& options, const std::vector<Route>& routes) {
  for (const auto& [interface, address] : routes) {
    log::detail(log::Subsystem::init, "gloo: interface {}, address {}", interface,
                address.empty() ? "of this host's name" : address);
    options.devices.push_back(address.empty() ? ProcessGroupGloo::createDefaultDevice(false)
                                              : ProcessGroupGloo::createDeviceForHostname(address, false));
  }
}

// Gloo writes to sockets whose other end may have died, with whichever thread comes by. What the program has chosen
// stays.
void ignore_broken_pipes() {
  struct sigaction action{};
  if (::sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup) {
  ignore_broken_pipes();
  auto options = ProcessGroupGloo::Options::create(kBeyondAnyTimeout);
  const auto routes = routes_of(setup.environment);
  require_same_families(setup, routes);
  add_devices(*options, routes);
  options->threads = 2 * static_cast<int>(options->devices.size());
  return c10::make_intrusive<ProcessGroupGloo>(setup.store, setup.environment.rank, setup.environment.world_size,
                                               std::move(options));
}

}  // namespace ddp::comm
