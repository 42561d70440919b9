#include "comm/watch_join.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "ddp/error.hpp"

namespace ddp::comm::watch {
namespace {

constexpr std::chrono::milliseconds kWelcomeLimit{5000};  // a live hub answers within milliseconds

std::string own_name() {
  std::array<char, 128> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) return "pid " + std::to_string(getpid());
  return std::string(host.data()) + " pid " + std::to_string(getpid());
}

[[noreturn]] void fail(const WatchLink::Options& options, const std::string& what, const std::string& remedy) {
  throw ConfigError({options.rank, options.world_size}, "peer watch", what, remedy);
}

std::string where(const WatchLink::Options& options) { return options.host + ":" + std::to_string(options.port); }

void send_hello(const WatchLink::Options& options, const Descriptor& socket, Clock::time_point deadline) {
  const std::string hello = encode_hello({.rank = static_cast<std::uint32_t>(options.rank),
                                          .world_size = static_cast<std::uint32_t>(options.world_size),
                                          .token = options.token,
                                          .name = own_name()});
  for (std::size_t sent = 0; sent < hello.size();) {
    const Transfer transfer = send_some(socket, std::string_view(hello).substr(sent));
    if (transfer.over) return;  // the reason, if the other side gave one, is still to be read
    sent += transfer.bytes;
    if (!transfer.again) continue;
    pollfd entry{socket.get(), POLLOUT, 0};
    poll_until({&entry, 1}, deadline);
    if (entry.revents == 0) return;
  }
}

Frame first_frame(const WatchLink::Options& options, const Descriptor& socket, FrameReader& frames,
                  Clock::time_point deadline) {
  std::array<char, 4096> buffer;
  for (;;) {
    if (auto frame = frames.next()) return *std::move(frame);
    if (frames.broken())
      fail(options, where(options) + " is another kind of program", "give the job a port of its own");
    pollfd entry{socket.get(), POLLIN, 0};
    poll_until({&entry, 1}, deadline);
    if (entry.revents == 0)
      fail(options, where(options) + " accepts connections but does not answer", "is rank 0 stopped?");
    const Transfer transfer = receive_some(socket, buffer);
    if (transfer.over) {
      fail(options, where(options) + " closed the connection during the introduction",
           "rank 0 ended meanwhile, or another program listens there");
    }
    frames.feed(std::string_view(buffer.data(), transfer.bytes));
  }
}

}  // namespace

Descriptor join_hub(const WatchLink::Options& options, FrameReader& frames) {
  if (options.rank < 0 || options.world_size < 1) throw std::invalid_argument("WatchLink: rank < 0 or world_size < 1");
  if (options.token.size() > kMaxToken) throw std::invalid_argument("WatchLink: the token is longer than 512 bytes");
  const auto deadline = Clock::now() + options.connect_timeout;
  Connection connection = connect_to(options.host, options.port, deadline);
  if (!connection.socket) {
    fail(options, "cannot reach rank 0 at " + where(options) + " (" + connection.error + ")",
         "check that rank 0 runs and that no firewall stands between the hosts");
  }
  tune_for_watching(connection.socket);
  const auto limit = std::max(deadline, Clock::now() + kWelcomeLimit);
  send_hello(options, connection.socket, limit);
  const Frame frame = first_frame(options, connection.socket, frames, limit);
  if (frame.type == FrameType::welcome) return std::move(connection.socket);
  if (frame.type == FrameType::reject) {
    fail(options, "rank 0 turned this rank away: " + frame.body, "start each rank once, with the job's own variables");
  }
  fail(options, where(options) + " is another kind of program", "give the job a port of its own");
}

}  // namespace ddp::comm::watch
