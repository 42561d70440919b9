#include "comm/watch_server.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace ddp::comm::watch {
namespace {

// Connections without a hello beyond the ranks themselves: room for a scanner, not for a flood.
constexpr std::size_t kMaxStrangers = 64;
constexpr std::chrono::milliseconds kRefusalLimit{1000};  // for the reason to be read
constexpr std::chrono::milliseconds kAcceptPause{100};    // out of descriptors: others must close some first

std::string reason_of(const Transfer& transfer) {
  switch (transfer.error) {
    case 0:
    case ECONNRESET:
    case EPIPE:
      return "its connection closed without a goodbye; the process ended or was killed";
    default:
      return "its host does not answer (" + error_text(transfer.error) + ")";
  }
}

}  // namespace

WatchServer::WatchServer(const Options& options, ServerEvents& events)
    : options_(options),
      events_(events),
      listener_(listen_on_free_port(options.loopback_only)),
      by_rank_(static_cast<std::size_t>(options.world_size), nullptr) {}

std::vector<pollfd> WatchServer::interests() const {
  std::vector<pollfd> entries;
  entries.reserve(peers_.size() + 2);
  entries.push_back({wake_.fd(), POLLIN, 0});
  // poll() skips negative descriptors.
  entries.push_back({Clock::now() < accept_again_ ? -1 : listener_.socket.get(), POLLIN, 0});
  for (const auto& peer : peers_) {
    const bool writes = !peer->out.empty() && !peer->deaf;
    entries.push_back({peer->socket.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
  }
  return entries;
}

Clock::time_point WatchServer::next_deadline(Clock::time_point deadline) const {
  if (Clock::now() < accept_again_) deadline = std::min(deadline, accept_again_);
  for (const auto& peer : peers_) deadline = std::min(deadline, peer->deadline);
  return deadline;
}

void WatchServer::step(Clock::time_point deadline) {
  std::vector<pollfd> entries = interests();
  poll_until(entries, next_deadline(deadline));
  if (entries[0].revents != 0) wake_.clear();
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = *peers_[i];
    if ((entries[i + 2].revents & ~POLLOUT) != 0) read_from(peer);
    if (peer.stage != Stage::over && peer.deadline <= Clock::now()) end(peer, "it said nothing in time");
  }
  flush();
  sweep();
  if (entries[1].revents != 0) accept_all();
}

void WatchServer::accept_all() {
  for (;;) {
    Accepted accepted = accept_from(listener_.socket);
    if (!accepted.socket) {
      if (accepted.error != EAGAIN) accept_again_ = Clock::now() + kAcceptPause;
      return;
    }
    tune_for_watching(accepted.socket);
    auto peer = std::make_unique<Peer>();
    peer->socket = std::move(accepted.socket);
    peer->deadline = Clock::now() + options_.hello_limit;
    peers_.push_back(std::move(peer));
    drop_oldest_newcomer();
  }
}

void WatchServer::drop_oldest_newcomer() {
  const auto is_newcomer = [](const auto& peer) { return peer->stage != Stage::joined; };
  const auto newcomers = static_cast<std::size_t>(std::count_if(peers_.begin(), peers_.end(), is_newcomer));
  if (newcomers <= kMaxStrangers + by_rank_.size()) return;
  peers_.erase(std::find_if(peers_.begin(), peers_.end(), is_newcomer));
}

void WatchServer::read_from(Peer& peer) {
  const Transfer transfer = receive_some(peer.socket, buffer_);
  if (transfer.again) return;
  if (transfer.over) return end(peer, reason_of(transfer));
  const std::string_view bytes(buffer_.data(), transfer.bytes);
  if (peer.stage == Stage::hello) return read_hello(peer, bytes);
  if (peer.stage != Stage::joined) return;  // refused: what it still says does not matter
  peer.frames.feed(bytes);
  read_frames(peer);
}

void WatchServer::read_hello(Peer& peer, std::string_view bytes) {
  switch (peer.hello.feed(bytes)) {
    case HelloReader::State::incomplete:
      return;
    case HelloReader::State::stranger:
      return end(peer, {});
    case HelloReader::State::other_version:
      return refuse(peer, "this rank runs another version of the library than rank 0");
    case HelloReader::State::complete:
      break;
  }
  const std::string refusal = events_.admit(peer.hello.hello());
  if (!refusal.empty()) return refuse(peer, refusal);
  peer.stage = Stage::joined;
  peer.rank = static_cast<int>(peer.hello.hello().rank);
  peer.deadline = Clock::time_point::max();
  by_rank_[static_cast<std::size_t>(peer.rank)] = &peer;
  send(peer.rank, encode_frame(FrameType::welcome));
  events_.joined(peer.rank);
  peer.frames.feed(peer.hello.rest());
  read_frames(peer);
}

void WatchServer::read_frames(Peer& peer) {
  while (const auto frame = peer.frames.next()) events_.received(peer.rank, *frame);
  if (peer.frames.broken()) end(peer, "it sent what is no message of this library");
}

void WatchServer::refuse(Peer& peer, const std::string& reason) {
  peer.stage = Stage::refused;
  peer.out = encode_frame(FrameType::reject, bounded_text(reason, kMaxText));
  peer.deadline = Clock::now() + kRefusalLimit;
}

void WatchServer::end(Peer& peer, const std::string& reason) {
  const bool was_joined = peer.stage == Stage::joined;
  peer.stage = Stage::over;
  if (!was_joined) return;
  by_rank_[static_cast<std::size_t>(peer.rank)] = nullptr;
  events_.gone(peer.rank, reason);
}

void WatchServer::send(int rank, std::string_view bytes) {
  Peer* peer = by_rank_[static_cast<std::size_t>(rank)];
  if (peer != nullptr && !peer->deaf) peer->out.append(bytes);
}

void WatchServer::send_to_all(std::string_view bytes) {
  for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) send(static_cast<int>(rank), bytes);
}

void WatchServer::flush() {
  for (const auto& peer : peers_) flush(*peer);
}

void WatchServer::flush(Peer& peer) {
  while (!peer.out.empty() && !peer.deaf && peer.stage != Stage::over) {
    const Transfer transfer = send_some(peer.socket, peer.out);
    if (transfer.again) return;
    peer.deaf = transfer.over;
    peer.out.erase(0, transfer.over ? std::string::npos : transfer.bytes);
    // The end of our side, not a close: a close over unread bytes would take the reason back.
    if (peer.stage == Stage::refused && peer.out.empty()) shutdown(peer.socket.get(), SHUT_WR);
  }
}

void WatchServer::sweep() {
  std::erase_if(peers_, [](const auto& peer) { return peer->stage == Stage::over; });
}

void WatchServer::stop_listening() {
  listener_.socket.close();
  std::erase_if(peers_, [](const auto& peer) { return peer->stage != Stage::joined; });
}

}  // namespace ddp::comm::watch
