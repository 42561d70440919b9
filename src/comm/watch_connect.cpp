// The client side of watch_socket.hpp: names to addresses, and attempts until one succeeds.

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "comm/watch_socket.hpp"

namespace ddp::comm::watch {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

struct Resolved {
  std::vector<Address> addresses = {};
  std::string error = {};
  bool worth_retrying = false;
};

std::string numeric(const Address& address) {
  char host[NI_MAXHOST] = {};
  const auto* name = reinterpret_cast<const sockaddr*>(&address.storage);
  if (getnameinfo(name, address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host;
}

/// The loopback needs no resolver, which may know of one family only.
std::vector<Address> loopback(std::uint16_t port) {
  std::vector<Address> both(2);
  auto& v4 = reinterpret_cast<sockaddr_in&>(both[0].storage);
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  v4.sin_port = htons(port);
  both[0].length = sizeof v4;
  auto& v6 = reinterpret_cast<sockaddr_in6&>(both[1].storage);
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  v6.sin6_port = htons(port);
  both[1].length = sizeof v6;
  return both;
}

Resolved resolve(const std::string& host, std::uint16_t port) {
  if (host == "localhost" || host == "127.0.0.1" || host == "::1") return {.addresses = loopback(port)};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status == EAI_SYSTEM) return {.error = error_text(errno)};
  if (status != 0) return {.error = gai_strerror(status), .worth_retrying = status == EAI_AGAIN};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  Resolved resolved;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address address;
    std::copy_n(reinterpret_cast<const char*>(entry->ai_addr), entry->ai_addrlen,
                reinterpret_cast<char*>(&address.storage));
    address.length = entry->ai_addrlen;
    resolved.addresses.push_back(address);
  }
  return resolved;
}

/// A client that asks a free port of its own range again and again can meet itself.
bool connected_to_itself(int fd) {
  sockaddr_storage here{};
  sockaddr_storage there{};
  socklen_t here_length = sizeof here;
  socklen_t there_length = sizeof there;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_length) != 0) return false;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_length) != 0) return false;
  const auto* bytes = reinterpret_cast<const char*>(&here);
  return here_length == there_length && std::equal(bytes, bytes + here_length, reinterpret_cast<const char*>(&there));
}

/// 0 and a connected socket, or an errno value.
int connect_once(const Address& address, Clock::time_point deadline, Descriptor& socket) {
  socket = Descriptor(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno;
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    pollfd entry{socket.get(), POLLOUT, 0};
    poll_until({&entry, 1}, deadline);
    if (entry.revents == 0) return ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
    if (error != 0) return error;
  }
  return connected_to_itself(socket.get()) ? ECONNREFUSED : 0;
}

bool may_be_a_race(int error) {
  return error == ECONNREFUSED || error == ECONNRESET || error == ECONNABORTED || error == EAGAIN;
}

}  // namespace

Connection connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline) {
  constexpr std::chrono::milliseconds longest_pause{200};
  for (std::chrono::milliseconds pause{5};; pause = std::min(pause * 2, longest_pause)) {
    const Resolved resolved = resolve(host, port);
    Connection result{.socket = {}, .error = resolved.error};
    bool again = resolved.worth_retrying;
    for (std::size_t i = 0; i < resolved.addresses.size(); ++i) {
      // A silent address must not use up the time of those after it.
      const auto share = (deadline - Clock::now()) / static_cast<int>(resolved.addresses.size() - i);
      const int error = connect_once(resolved.addresses[i], Clock::now() + share, result.socket);
      if (error == 0) {
        result.error.clear();
        return result;
      }
      again = again || may_be_a_race(error);
      result.error += (i == 0 ? "" : ", ") + numeric(resolved.addresses[i]) + ": " + error_text(error);
    }
    result.socket.close();
    if (result.error.empty()) result.error = "the name has no address";
    if (!again || Clock::now() + pause >= deadline) return result;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace ddp::comm::watch
