#pragma once
/// watch_socket.hpp: the few socket calls of the peer watch: close-on-exec, non-blocking, without
/// SIGPIPE, restarted after signals, and bounded in time.

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ddp::comm::watch {

using Clock = std::chrono::steady_clock;

/// Owns a descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close() noexcept;
  /// Somebody else's from here on.
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Wakes a thread out of poll(). Rung once it stays readable until cleared.
/// Threads: all calls from any thread; neither locks nor allocates.
class Wake {
 public:
  Wake();  ///< Errors: std::system_error

  void ring() noexcept;
  void clear() noexcept;
  /// Waits for a ring, at most until `deadline`; false when it passed.
  bool wait(Clock::time_point deadline) const noexcept;
  int fd() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

/// poll() until something happens or `deadline` passes; restarts after signals.
void poll_until(std::span<pollfd> sockets, Clock::time_point deadline) noexcept;

struct Listener {
  Descriptor socket;
  std::uint16_t port = 0;
};

/// Listens on a free port: on 127.0.0.1 (::1 where that does not exist), or on every address of
/// both families (IPv4 alone where there is no IPv6). Errors: std::system_error.
Listener listen_on_free_port(bool loopback_only);

/// Whether this number is a descriptor of a socket that listens.
bool is_listening(int descriptor) noexcept;

struct Accepted {
  Descriptor socket;
  int error = 0;  ///< errno when there is no socket: EAGAIN, or what went wrong
};
Accepted accept_from(const Descriptor& listener) noexcept;

struct Connection {
  Descriptor socket;
  std::string error;  ///< what failed when there is no socket, with the addresses that were tried
};

/// Tries every address of `host`, again and again while one of them refuses in a way that may be
/// the race of a start, until `deadline`. A name or address of the loopback stands for both families.
Connection connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline);

/// Small messages leave at once; a host that vanished is noticed within about 30 s.
void tune_for_watching(const Descriptor& socket) noexcept;

/// "10.0.0.1:4242" of the other end.
std::string peer_address(const Descriptor& socket);

/// What a non-blocking transfer did: `bytes` moved; or nothing for now (`again`); or the connection
/// is over, with `error` 0 for an end of file.
struct Transfer {
  std::size_t bytes = 0;
  bool again = false;
  bool over = false;
  int error = 0;
};
Transfer receive_some(const Descriptor& socket, std::span<char> into) noexcept;
Transfer send_some(const Descriptor& socket, std::string_view bytes) noexcept;

/// The text of an errno value. Threads: any.
std::string error_text(int error);

}  // namespace ddp::comm::watch
