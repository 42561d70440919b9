#include "comm/store_probe.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace ddp::comm {
namespace {

using watch::Clock;
using watch::Descriptor;

constexpr int kBacklog = 4096;  // all ranks connect at once; the kernel cuts it to its own limit

// The greeting of TCPStore's clients since LibTorch 2.3: one byte and a number to say what this is, one
// byte and a number that the server sends back. In the machine's byte order, as c10d sends them.
constexpr std::uint8_t kValidate = 0;
constexpr std::uint32_t kMagic = 0x3C85F7CE;
constexpr std::uint8_t kPing = 13;

Descriptor listen_on(int family, std::uint16_t port) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return socket;
  const int yes = 1, no = 0;
  // A port whose last connections are not yet forgotten is free all the same.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (family == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_ANY);
  v4.sin_port = htons(port);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_any;
  v6.sin6_port = htons(port);
  const auto* const address =
      family == AF_INET ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  const socklen_t length = family == AF_INET ? sizeof v4 : sizeof v6;
  if (::bind(socket.get(), address, length) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    const int error = errno;
    socket.close();
    errno = error;
  }
  return socket;
}

std::array<char, 10> greeting(std::uint32_t nonce) {
  std::array<char, 10> bytes{};
  bytes[0] = static_cast<char>(kValidate);
  std::memcpy(&bytes[1], &kMagic, sizeof kMagic);
  bytes[5] = static_cast<char>(kPing);
  std::memcpy(&bytes[6], &nonce, sizeof nonce);
  return bytes;
}

std::string host_of(const std::string& address) {
  auto host = address.substr(0, address.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

StorePort take_store_port(std::uint16_t port) noexcept {
  StorePort result;
  result.socket = listen_on(AF_INET6, port);
  if (!result.socket && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) result.socket = listen_on(AF_INET, port);
  if (!result.socket) result.error = errno;
  return result;
}

StoreAnswer ask_store(const std::string& host, std::uint16_t port, Clock::time_point deadline) {
  using Kind = StoreAnswer::Kind;
  const auto connection = watch::connect_to(host, port, deadline);
  if (!connection.socket) return {Kind::unreachable, {}, connection.error};
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  const auto words = greeting(nonce);
  static_cast<void>(watch::send_some(connection.socket, {words.data(), words.size()}));  // fits an empty buffer
  std::array<char, sizeof nonce> answer{};
  for (std::size_t heard = 0; heard < answer.size();) {
    pollfd entry{connection.socket.get(), POLLIN, 0};
    watch::poll_until({&entry, 1}, deadline);
    if (entry.revents == 0) return {Kind::silent, {}, "somebody listens there, but does not answer"};
    const auto transfer = watch::receive_some(connection.socket, std::span(answer).subspan(heard));
    if (transfer.over) return {Kind::unreachable, {}, "somebody listens there, but closes the connection"};
    heard += transfer.bytes;
  }
  if (std::memcmp(answer.data(), &nonce, sizeof nonce) != 0) return {Kind::foreign, {}, "another kind of program"};
  return {Kind::serves, host_of(watch::peer_address(connection.socket)), {}};
}

}  // namespace ddp::comm
