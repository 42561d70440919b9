#include "comm/watch_socket.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace ddp::comm::watch {
namespace {

constexpr int kBacklog = 4096;  // all ranks connect at once; the kernel cuts it to its own limit

[[noreturn]] void raise(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

void set_option(int fd, int level, int option, int value) noexcept {
  // Tuning only: an old kernel that lacks one of these still works.
  static_cast<void>(setsockopt(fd, level, option, &value, sizeof value));
}

std::uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

/// A listening socket on one address, or none with errno set.
Descriptor try_listen(const sockaddr* address, socklen_t length) {
  Descriptor socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return socket;
  if (address->sa_family == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.get(), address, length) != 0 || listen(socket.get(), kBacklog) != 0) return Descriptor();
  return socket;
}

Descriptor listen_v4(in_addr_t host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  return try_listen(reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

Descriptor listen_v6(const in6_addr& host) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = host;
  return try_listen(reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

Transfer transfer(ssize_t result) noexcept {
  if (result > 0) return {.bytes = static_cast<std::size_t>(result)};
  if (result == 0) return {.over = true};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {.again = true};
  return {.over = true, .error = errno};
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Wake::Wake() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) raise("eventfd");
}

void Wake::ring() noexcept {
  const std::uint64_t one = 1;
  while (write(fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Wake::clear() noexcept {
  std::uint64_t count = 0;
  while (read(fd_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
}

bool Wake::wait(Clock::time_point deadline) const noexcept {
  pollfd entry{fd_.get(), POLLIN, 0};
  poll_until({&entry, 1}, deadline);
  return entry.revents != 0;
}

void poll_until(std::span<pollfd> sockets, Clock::time_point deadline) noexcept {
  constexpr std::chrono::milliseconds longest{24 * 3600 * 1000};  // fits poll's int; the caller loops anyway
  for (;;) {
    int limit = -1;
    if (deadline != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      limit = static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), longest).count());
    }
    if (poll(sockets.data(), sockets.size(), limit) >= 0 || errno != EINTR) return;
  }
}

Listener listen_on_free_port(bool loopback_only) {
  Listener listener;
  listener.socket = loopback_only ? listen_v4(INADDR_LOOPBACK) : listen_v6(in6addr_any);
  if (!listener.socket) listener.socket = loopback_only ? listen_v6(in6addr_loopback) : listen_v4(INADDR_ANY);
  if (!listener.socket) raise("listen");
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) raise("getsockname");
  listener.port = port_of(address);
  return listener;
}

bool is_listening(int descriptor) noexcept {
  int listens = 0;
  socklen_t length = sizeof listens;
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

Accepted accept_from(const Descriptor& listener) noexcept {
  for (;;) {
    Accepted accepted;
    accepted.socket = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.socket) return accepted;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    accepted.error = errno == EWOULDBLOCK ? EAGAIN : errno;
    return accepted;
  }
}

void tune_for_watching(const Descriptor& socket) noexcept {
  // First probe after 10 s of silence, lost after four unanswered ones 5 s apart: 30 s. The user
  // timeout says the same for data that is never acknowledged.
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_option(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
}

std::string peer_address(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return "an unknown address";
  char host[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, host, sizeof host);
    return std::string(host) + ":" + std::to_string(port_of(address));
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, host, sizeof host);
  return "[" + std::string(host) + "]:" + std::to_string(port_of(address));
}

Transfer receive_some(const Descriptor& socket, std::span<char> into) noexcept {
  ssize_t result = 0;
  do {
    result = recv(socket.get(), into.data(), into.size(), 0);
  } while (result < 0 && errno == EINTR);
  return transfer(result);
}

Transfer send_some(const Descriptor& socket, std::string_view bytes) noexcept {
  ssize_t result = 0;
  do {
    result = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  } while (result < 0 && errno == EINTR);
  return transfer(result);
}

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace ddp::comm::watch
