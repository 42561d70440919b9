#include "comm/store_server.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/quiet.hpp"
#include "comm/text_of.hpp"
#include "comm/watch_socket.hpp"
#include "ddp/error.hpp"

namespace ddp::comm {
namespace {

constexpr std::chrono::seconds kOwnServerLimit{10};  // for a thread of this process to get its turn

ConfigError cannot_serve(int listening, const std::string& reason) {
  return {{}, "ddprun_store", "cannot serve a store on descriptor " + std::to_string(listening) + ": " + reason};
}

struct Place {
  std::string host;  ///< numeric, and reached from this process
  std::uint16_t port = 0;
};

bool takes_ipv6_alone(int socket) {
  int alone = 0;
  socklen_t size = sizeof alone;
  return ::getsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &alone, &size) == 0 && alone != 0;
}

std::string loopback_of_all(int socket, const sockaddr_storage& bound) {
  if (bound.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(bound).sin_addr.s_addr == htonl(INADDR_ANY) ? "127.0.0.1" : "";
  if (!IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(bound).sin6_addr)) return "";
  return takes_ipv6_alone(socket) ? "::1" : "127.0.0.1";
}

Place place_of(int listening) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  auto* const raw = reinterpret_cast<sockaddr*>(&bound);
  if (::getsockname(listening, raw, &size) != 0) throw cannot_serve(listening, std::strerror(errno));
  if (bound.ss_family != AF_INET && bound.ss_family != AF_INET6) throw cannot_serve(listening, "it is no TCP socket");
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (const int code =
          ::getnameinfo(raw, size, host.data(), host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
      code != 0)
    throw cannot_serve(listening, ::gai_strerror(code));
  auto all = loopback_of_all(listening, bound);
  return {all.empty() ? host.data() : std::move(all), static_cast<std::uint16_t>(std::stoi(port.data()))};
}

void wait_for_end_of(int lifeline) {
  std::array<char, 256> dropped{};
  for (;;) {
    const ssize_t size = ::read(lifeline, dropped.data(), dropped.size());
    if (size == 0 || (size < 0 && errno != EINTR)) return;
  }
}

c10::intrusive_ptr<c10d::TCPStore> serve(int listening) {
  if (!watch::is_listening(listening)) throw cannot_serve(listening, "it is no socket that listens");
  const auto place = place_of(listening);
  c10d::TCPStoreOptions options;
  options.port = place.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = kOwnServerLimit;
  options.masterListenFd = listening;
  const Quiet quiet;
  try {
    return c10::make_intrusive<c10d::TCPStore>(place.host, options);
  } catch (const std::exception& error) {
    throw cannot_serve(listening, text_of(error));
  }
}

}  // namespace

void serve_store(int listening, int lifeline) {
  const auto store = serve(listening);
  wait_for_end_of(lifeline);
}

}  // namespace ddp::comm
