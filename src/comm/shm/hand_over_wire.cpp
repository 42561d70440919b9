#include "comm/shm/hand_over_wire.hpp"

#include <algorithm>
#include <cstddef>

namespace ddp::comm::shm {

using watch::Descriptor;

std::optional<AbstractAddress> abstract_address(std::string_view name) noexcept {
  AbstractAddress address;
  if (name.empty() || name.size() >= sizeof address.raw.sun_path) return std::nullopt;
  address.raw.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.raw.sun_path + 1);  // behind a zero, which makes it abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor packet_socket() noexcept {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::optional<uid_t> user_of(const Descriptor& socket) noexcept {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer.uid;
}

}  // namespace ddp::comm::shm
