#include "start/store_socket.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "ddp/error.hpp"

namespace ddp::start {
namespace {

void require(bool ok, std::uint16_t port) {
  if (ok) return;
  const std::string reason = std::strerror(errno);
  throw ConfigError({}, "ddprun", "cannot listen on 127.0.0.1:" + std::to_string(port) + ": " + reason,
                    port == 0 ? "" : "another job may hold the port; leave out --master-port to get a free one");
}

}  // namespace

StoreSocket::StoreSocket(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  require(socket_.get() >= 0, port);
  const int on = 1;  // a port of an ended job may be taken again at once; one that is listened on never is
  require(::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, port);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  require(::bind(socket_.get(), raw, size) == 0, port);
  require(::listen(socket_.get(), SOMAXCONN) == 0, port);
  require(::getsockname(socket_.get(), raw, &size) == 0, port);
  port_ = ntohs(address.sin_port);
}

}  // namespace ddp::start
