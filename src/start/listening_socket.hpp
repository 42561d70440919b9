#pragma once
/// listening_socket.hpp: a socket that listens before anybody is told of its port and is never closed in between, so
/// that no port is ever taken twice and nobody is early.

#include <cstdint>
#include <string>

#include "base/descriptor.hpp"

namespace ddp::start {

/// The launcher hands one to rank 0, which serves the store on it; another one is where launchers meet.
class ListeningSocket {
 public:
  /// Of every address of this machine, of both families where it has both.
  static constexpr const char* kEverywhere = "";
  static constexpr const char* kLoopback = "127.0.0.1";

  /// `address`: a numeric one or a name of this machine's, kEverywhere or kLoopback; port 0: any that is free.
  /// Close-on-exec. Errors: ConfigError when the address or the port cannot be had.
  ListeningSocket(const std::string& address, std::uint16_t port);

  std::uint16_t port() const { return port_; }
  int descriptor() const { return socket_.get(); }

 private:
  Descriptor socket_;
  std::uint16_t port_ = 0;
};

}  // namespace ddp::start
