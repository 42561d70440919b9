#pragma once
/// watch_server.hpp: the hub's sockets: admits ranks, turns strangers away, moves frames.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/watch_frame.hpp"
#include "comm/watch_socket.hpp"

namespace ddp::comm::watch {

/// What the server tells its owner; called from inside step(). A call may send, nothing else.
class ServerEvents {
 public:
  /// A stranger with the right manners: empty to let it in, else the reason that it is told.
  virtual std::string admit(const Hello& hello) = 0;
  virtual void joined(int rank) = 0;
  virtual void received(int rank, const Frame& frame) = 0;
  /// The connection of an admitted rank is over.
  virtual void gone(int rank, const std::string& reason) = 0;

 protected:
  ~ServerEvents() = default;
};

/// Threads: wake() from any; everything else from one.
class WatchServer {
 public:
  struct Options {
    int world_size = 1;
    bool loopback_only = true;
    std::chrono::milliseconds hello_limit{5000};  ///< a connection that says no hello in time is closed
  };
  /// Errors: std::system_error
  WatchServer(const Options& options, ServerEvents& events);

  std::uint16_t port() const { return listener_.port; }
  void wake() noexcept { wake_.ring(); }

  /// Waits for traffic, at most until `deadline`, and deals with it.
  void step(Clock::time_point deadline);
  /// Queues bytes for a rank; they leave at the end of step() or with flush().
  void send(int rank, std::string_view bytes);
  void send_to_all(std::string_view bytes);
  void flush();
  /// No more newcomers; closes what has not joined.
  void stop_listening();
  bool has_connections() const { return !peers_.empty(); }

 private:
  enum class Stage { hello, joined, refused, over };
  struct Peer {
    Descriptor socket;
    Stage stage = Stage::hello;
    int rank = -1;
    Clock::time_point deadline;
    HelloReader hello;
    FrameReader frames;
    std::string out;
    bool deaf = false;  ///< sending failed; what it has sent is still read
  };

  std::vector<pollfd> interests() const;
  Clock::time_point next_deadline(Clock::time_point deadline) const;
  void accept_all();
  void drop_oldest_newcomer();
  void read_from(Peer& peer);
  void read_hello(Peer& peer, std::string_view bytes);
  void read_frames(Peer& peer);
  void refuse(Peer& peer, const std::string& reason);
  void end(Peer& peer, const std::string& reason);
  void flush(Peer& peer);
  void sweep();

  Options options_;
  ServerEvents& events_;
  Listener listener_;
  Wake wake_;
  Clock::time_point accept_again_ = Clock::time_point::min();  ///< after the process ran out of descriptors
  std::vector<std::unique_ptr<Peer>> peers_;                   ///< oldest first
  std::vector<Peer*> by_rank_;
  std::array<char, 16 * 1024> buffer_;
};

}  // namespace ddp::comm::watch
