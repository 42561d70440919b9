#include "launch/link.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace ddp::launch {
namespace {

// A switch that starts again takes longer than ten seconds now and then, and nobody waits for longer than a minute.
constexpr int kSilentSeconds = 10, kProbeSeconds = 5, kProbes = 4, kUnsentMilliseconds = 30'000;

void set(int socket, int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); }

}  // namespace

Link::Link(Descriptor socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  set(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, kSilentSeconds);
  set(socket_.get(), IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(socket_.get(), IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kUnsentMilliseconds);
  set(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
}

void Link::send(const Message& message) {
  waiting_ += encoded(message);
  send_waiting();
}

void Link::look() {
  send_waiting();
  receive();
}

void Link::send_waiting() {
  while (!waiting_.empty() && !is_over_) {
    const ssize_t size = ::send(socket_.get(), waiting_.data(), waiting_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size >= 0) {
      waiting_.erase(0, static_cast<std::size_t>(size));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      receive();  // its last words may be here
      is_over_ = true;
    }
  }
}

void Link::receive() {
  char buffer[4096];
  while (!is_over_ && heard_.size() <= kLongestMessage + sizeof buffer) {
    const ssize_t size = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (size > 0) {
      heard_.append(buffer, static_cast<std::size_t>(size));
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      is_over_ = true;
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

std::optional<Message> Link::next() { return take_message(heard_); }

}  // namespace ddp::launch
