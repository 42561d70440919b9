#pragma once
/// store_probe.hpp: the store's port before the store: taking it for a server, and asking who is
/// behind it for a client. LibTorch's own attempts are slow and print stack traces.

#include <cstdint>
#include <string>

#include "comm/watch_socket.hpp"

namespace ddp::comm {

/// Listens on a port of all addresses of both families (IPv4 alone where there is no IPv6); no
/// descriptor and errno's value where that is not possible.
struct StorePort {
  watch::Descriptor socket;
  int error = 0;
};
StorePort take_store_port(std::uint16_t port) noexcept;

/// Who is at a store's address.
struct StoreAnswer {
  enum class Kind {
    serves,       ///< a store
    unreachable,  ///< nobody listens, or no packet arrives
    silent,       ///< somebody listens and says nothing: a launcher's socket whose rank is not up yet, or a stranger
    foreign,      ///< another kind of program
  };
  Kind kind = Kind::unreachable;
  std::string address = {};  ///< of the one that serves, numeric
  std::string reason = {};   ///< of the others, in words
};

/// Tries every address of `host` until one is connected or `deadline` passes, and greets it as LibTorch's
/// clients do. May return early where nothing is gained by another attempt at once.
StoreAnswer ask_store(const std::string& host, std::uint16_t port, watch::Clock::time_point deadline);

}  // namespace ddp::comm
