#include "start/listening_socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "ddp/error.hpp"

namespace ddp::start {
namespace {

constexpr int kBacklog = 4096;  // all ranks connect at once; the kernel cuts it to its own limit

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

ConfigError cannot_listen(const std::string& address, std::uint16_t port, const std::string& reason) {
  const auto place = address.find(':') == std::string::npos ? address : "[" + address + "]";
  return {Origin{}, "ddprun",
          "cannot listen on " + (address.empty() ? "port " : place + ":") + std::to_string(port) + ": " + reason,
          port == 0 ? ""
                    : "another job may hold the port: choose another --master-port; on one machine leave it out to get "
                      "a free one"};
}

Address everywhere(int family) {
  Address address;
  address.bytes.ss_family = static_cast<sa_family_t>(family);  // both families' "any" are zeros
  address.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

Address resolve(const std::string& name, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(name.c_str(), nullptr, &hints, &list); code != 0) {
    throw cannot_listen(name, port, ::gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  Address address;
  std::memcpy(&address.bytes, list->ai_addr, list->ai_addrlen);
  address.size = list->ai_addrlen;
  return address;
}

void set_port(Address& address, std::uint16_t port) {
  if (address.bytes.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.bytes)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address.bytes)->sin_port = htons(port);
  }
}

std::uint16_t port_of(const Address& address) {
  return ntohs(address.bytes.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address.bytes)->sin6_port
                                                   : reinterpret_cast<const sockaddr_in*>(&address.bytes)->sin_port);
}

/// None, with errno, where that cannot be.
Descriptor listen_on(Address address) {
  Descriptor socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return {};
  const int on = 1, off = 0;  // a port of an ended job may be taken again at once; one that is listened on never is
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.bytes.ss_family == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.get(), address.get(), address.size) == 0 && ::listen(socket.get(), kBacklog) == 0) return socket;
  const int reason = errno;
  socket.close();
  errno = reason;
  return {};
}

}  // namespace

ListeningSocket::ListeningSocket(const std::string& name, std::uint16_t port) {
  auto address = name.empty() ? everywhere(AF_INET6) : resolve(name, port);
  set_port(address, port);
  socket_ = listen_on(address);
  if (socket_.get() < 0 && name.empty() && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {  // no IPv6 here
    address = everywhere(AF_INET);
    set_port(address, port);
    socket_ = listen_on(address);
  }
  if (socket_.get() < 0) throw cannot_listen(name, port, std::strerror(errno));
  if (::getsockname(socket_.get(), address.get(), &address.size) != 0) {
    throw cannot_listen(name, port, std::strerror(errno));
  }
  port_ = port_of(address);
}

}  // namespace ddp::start
