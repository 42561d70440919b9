#pragma once
/// link.hpp: a connection between the launchers of two nodes.

#include <poll.h>

#include <optional>
#include <string>

#include "base/descriptor.hpp"
#include "launch/message.hpp"

namespace ddp::launch {

/// Never waits. A peer whose machine is gone is noticed within half a minute.
class Link {
 public:
  /// `peer` in words, for texts.
  Link(Descriptor socket, std::string peer);

  /// Queued until the peer takes it.
  void send(const Message& message);
  /// Sends what is queued and reads what has come.
  void look();
  /// What has come. Errors: std::runtime_error where the peer does not speak this language.
  std::optional<Message> next();
  /// There is nothing more to come.
  bool is_over() const { return is_over_; }

  pollfd wanted() const { return {socket_.get(), static_cast<short>(POLLIN | (waiting_.empty() ? 0 : POLLOUT)), 0}; }
  const std::string& peer() const { return peer_; }

 private:
  void send_waiting();
  void receive();

  Descriptor socket_;
  std::string peer_;
  std::string waiting_, heard_;
  bool is_over_ = false;
};

}  // namespace ddp::launch
