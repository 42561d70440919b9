#pragma once
/// store_socket.hpp: the socket that rank 0 serves the store on, listening before any rank starts, so that no port is
/// ever taken twice and no rank is early.

#include <cstdint>

#include "start/descriptors.hpp"

namespace ddp::start {

class StoreSocket {
 public:
  /// Listens on 127.0.0.1; port 0: any that is free. Close-on-exec.
  /// Errors: ConfigError when the port cannot be had.
  explicit StoreSocket(std::uint16_t port);

  std::uint16_t port() const { return port_; }
  int descriptor() const { return socket_.get(); }

 private:
  Descriptor socket_;
  std::uint16_t port_ = 0;
};

}  // namespace ddp::start
