// Gloo's headers are Debian's, its code is LibTorch's: no gloo type is made or derived from here.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <sstream>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "comm/backend.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using c10d::ProcessGroupGloo;

// Longer than any training waits for one call, and short enough for Gloo's own arithmetic on time.
constexpr auto kBeyondAnyTimeout = std::chrono::hours(24 * 365);

// This host's address on the way to the master: the one that the other hosts can reach too. A host's
// own name often stands for a loopback address. Empty where no way is found.
std::string address_towards(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // connecting it sends nothing
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  std::string found;
  for (const auto* address = list; address != nullptr && found.empty(); address = address->ai_next) {
    const int descriptor = ::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST];
    if (::connect(descriptor, address->ai_addr, address->ai_addrlen) == 0 &&
        ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      found = text;
    }
    ::close(descriptor);
  }
  return found;
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

// Empty: the address of this host's name.
std::string own_address(const Environment& environment) {
  if (environment.single_host() || is_loopback(environment.master_address)) return "127.0.0.1";
  const auto address = address_towards(environment.master_address, environment.master_port);
  return is_loopback(address) ? std::string() : address;  // of no use to the other hosts
}

void add_devices(ProcessGroupGloo::Options& options, const Environment& environment) {
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME"); names != nullptr && *names != '\0') {
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      log::detail(log::Subsystem::init, "gloo: interface {} (GLOO_SOCKET_IFNAME)", name);
      options.devices.push_back(ProcessGroupGloo::createDeviceForInterface(name, false));
    }
    return;
  }
  const auto address = own_address(environment);
  log::detail(log::Subsystem::init, "gloo: address {}", address.empty() ? "of this host's name" : address);
  options.devices.push_back(address.empty() ? ProcessGroupGloo::createDefaultDevice(false)
                                            : ProcessGroupGloo::createDeviceForHostname(address, false));
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup) {
  auto options = ProcessGroupGloo::Options::create(kBeyondAnyTimeout);
  add_devices(*options, setup.environment);
  options->threads = 2 * static_cast<int>(options->devices.size());
  return c10::make_intrusive<ProcessGroupGloo>(setup.store, setup.environment.rank, setup.environment.world_size,
                                               std::move(options));
}

}  // namespace ddp::comm
