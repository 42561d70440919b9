#include "base/inspection_wire.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>

namespace ddp::inspection {

Address address_of(const ProcessKey& process) {
  const auto name = std::string(kSocketPrefix) + process.text();
  Address address;
  address.raw.sun_family = AF_UNIX;
  static_assert(kSocketPrefix.size() + 42 < sizeof address.raw.sun_path);             // two numbers and a zero
  std::copy(name.begin(), name.end(), static_cast<char*>(address.raw.sun_path) + 1);  // the zero makes it abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor stream_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) throw std::system_error(errno, std::generic_category(), "a Unix socket");
  return socket;
}

std::optional<uid_t> user_of(int socket) noexcept {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer.uid;
}

bool wait_for(int socket, short events, Clock::time_point deadline, int stop) noexcept {
  for (;;) {
    int limit = -1;
    if (deadline != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return false;
      limit = static_cast<int>(std::min<std::int64_t>(left, 3600 * 1000));
    }
    std::array<pollfd, 2> entries{{{socket, events, 0}, {stop, POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), limit) < 0 && errno != EINTR) return false;
    if (entries[1].revents != 0) return false;
    if (entries[0].revents != 0) return true;
  }
}

Transfer Conversation::send(std::string_view bytes, Clock::time_point deadline) const noexcept {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return Transfer::over;
    } else if (!wait_for(socket_, POLLOUT, deadline, stop_)) {
      return Transfer::late;
    }
  }
  return Transfer::done;
}

Transfer Conversation::receive_line(std::string& line, Clock::time_point deadline) {
  for (;;) {
    const auto end = heard_.find('\n');
    if (end != std::string::npos) {
      line = take(end + 1);
      line.pop_back();
      return Transfer::done;
    }
    if (heard_.size() > kLongestLine) return Transfer::over;
    if (const auto transfer = receive_more(deadline); transfer != Transfer::done) return transfer;
  }
}

Transfer Conversation::receive(std::string& bytes, std::size_t count, Clock::time_point deadline) {
  while (heard_.size() < count) {
    if (const auto transfer = receive_more(deadline); transfer != Transfer::done) return transfer;
  }
  bytes = take(count);
  return Transfer::done;
}

Transfer Conversation::receive_more(Clock::time_point deadline) {
  std::array<char, 8192> buffer;
  for (;;) {
    if (!wait_for(socket_, POLLIN, deadline, stop_)) return Transfer::late;
    const ssize_t size = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (size > 0) {
      heard_.append(buffer.data(), static_cast<std::size_t>(size));
      return Transfer::done;
    }
    if (size == 0 || (errno != EAGAIN && errno != EINTR)) return Transfer::over;
  }
}

std::string Conversation::take(std::size_t count) {
  auto taken = heard_.substr(0, count);
  heard_.erase(0, count);
  return taken;
}

}  // namespace ddp::inspection
