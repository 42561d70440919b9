#include "comm/own_address.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string_view>

namespace ddp::comm {
namespace {

struct Way {
  std::string own;   // this host's address
  std::string host;  // the other one's
};

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  return ::getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

// This host's address on the way to the master is the one that the other hosts can reach too; a host's
// own name often stands for a loopback address. Empty where no way is found.
Way way_to(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // connecting it sends nothing
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  Way found;
  for (const auto* address = list; address != nullptr && found.own.empty(); address = address->ai_next) {
    const int descriptor = ::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (::connect(descriptor, address->ai_addr, address->ai_addrlen) == 0 &&
        ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      found = {numeric(reinterpret_cast<sockaddr*>(&own), length), numeric(address->ai_addr, address->ai_addrlen)};
    }
    ::close(descriptor);
  }
  return found;
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

}  // namespace

std::string own_address(const Environment& environment) {
  if (environment.single_host() || is_loopback(environment.master_address)) return "127.0.0.1";
  const auto address = way_to(environment.master_address, environment.master_port).own;
  return is_loopback(address) ? std::string() : address;  // of no use to the other hosts
}

bool peers_are_remote(const Environment& environment) {
  if (environment.single_host() || is_loopback(environment.master_address)) return false;
  if (environment.local_world_size > 0) return true;
  const auto way = way_to(environment.master_address, environment.master_port);
  return !way.own.empty() && way.own != way.host;  // on the way to oneself both ends are the same
}

std::string reachable_address(const Environment& environment) {
  auto address = own_address(environment);
  if (!address.empty()) return address;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace ddp::comm
