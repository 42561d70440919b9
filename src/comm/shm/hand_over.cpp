#include "comm/shm/hand_over.hpp"

#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "comm/shm/hand_over_wire.hpp"
#include "comm/shm/unavailable.hpp"

namespace ddp::comm::shm {
namespace {

using watch::Clock;
using watch::Descriptor;
using watch::error_text;

constexpr char kBetween = ':';  // in an offer's text; stands in neither part
constexpr std::string_view kDigits = "0123456789abcdef";

/// The ranks, and some that say nothing; each costs a descriptor.
std::size_t most_clients(const Layout& layout) { return std::size_t{layout.ranks} + 64; }

/// 128 random bits in hexadecimal digits.
std::string random_digits() {
  std::array<unsigned char, kTokenLength / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Unavailable("getrandom: " + error_text(errno));
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Descriptor listen_on(const std::string& name, std::size_t backlog) {
  Descriptor socket = packet_socket();
  const auto address = abstract_address(name);
  if (!socket || !address || bind(socket.get(), address->get(), address->length) != 0 ||
      listen(socket.get(), static_cast<int>(backlog)) != 0) {
    throw Unavailable("an abstract Unix socket: " + error_text(errno));
  }
  return socket;
}

/// Takes as long for a token that is nearly right as for any other.
bool same_token(const Request& request, const std::string& token) {
  unsigned difference = token.size() == request.token.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(token.size(), request.token.size()); ++i) {
    difference |= static_cast<unsigned char>(token[i]) ^ static_cast<unsigned char>(request.token[i]);
  }
  return difference == 0;
}

}  // namespace

std::string Offer::text() const { return name + kBetween + token; }

Offer Offer::parsed(std::string_view text) {
  const auto between = text.find(kBetween);
  Offer offer;
  if (between != std::string_view::npos) {
    offer = {.name = std::string(text.substr(0, between)), .token = std::string(text.substr(between + 1))};
  }
  if (!abstract_address(offer.name) || offer.token.size() != kTokenLength ||
      offer.token.find_first_not_of(kDigits) != std::string::npos) {
    throw Unavailable("rank 0's offer of its memory cannot be read");
  }
  return offer;
}

HandOverServer::HandOverServer(int file, const Layout& layout, uid_t user)
    : file_(file),
      layout_(layout),
      user_(user),
      offer_{.name = "ddp-" + random_digits(), .token = random_digits()},
      listener_(listen_on(offer_.name, most_clients(layout))) {}

void HandOverServer::serve(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  do {
    wait(all_served() ? Clock::now() : deadline);
    accept_all(deadline);
    answer_all();
  } while (!all_served() && Clock::now() < deadline);
}

/// Until somebody connects or speaks.
void HandOverServer::wait(Clock::time_point deadline) const {
  std::vector<pollfd> sockets{{listener_.get(), POLLIN, 0}};
  for (const Descriptor& client : clients_) sockets.push_back({client.get(), POLLIN, 0});
  watch::poll_until(sockets, deadline);
}

void HandOverServer::accept_all(Clock::time_point deadline) {
  for (;;) {
    watch::Accepted accepted = watch::accept_from(listener_);
    if (accepted.error == EAGAIN) return;
    if (accepted.error != 0) {  // out of descriptors, in all likelihood
      if (make_room()) continue;
      return watch::poll_until({}, std::min(deadline, Clock::now() + std::chrono::milliseconds(10)));
    }
    if (user_of(accepted.socket) != user_) continue;
    if (clients_.size() >= most_clients(layout_)) make_room();
    clients_.push_back(std::move(accepted.socket));
  }
}

void HandOverServer::answer_all() {
  std::erase_if(clients_, [this](const Descriptor& client) { return done_with(client); });
}

/// Answers those who can be answered, else gives up the one that has been silent for longest; false where
/// there is nobody.
bool HandOverServer::make_room() {
  const auto before = clients_.size();
  answer_all();
  if (!clients_.empty() && clients_.size() == before) clients_.erase(clients_.begin());
  return before > 0;
}

/// False while it has said nothing.
bool HandOverServer::done_with(const Descriptor& client) {
  Request request;
  ssize_t length = 0;
  do {
    length = recv(client.get(), &request, sizeof request, MSG_TRUNC);  // the packet's length, however long
  } while (length < 0 && errno == EINTR);
  if (length < 0) return errno != EAGAIN;
  const bool right = length == sizeof request && request.magic == kMagic && request.version == kVersion &&
                     request.rank < layout_.ranks && same_token(request, offer_.token);
  if (right && send_memory(client)) served_.insert(request.rank);
  return true;
}

bool HandOverServer::send_memory(const Descriptor& client) const {
  Answer answer{.magic = kMagic,
                .version = kVersion,
                .ranks = layout_.ranks,
                .control_bytes = layout_.control_bytes,
                .region_bytes = layout_.region_bytes};
  iovec bytes{&answer, sizeof answer};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof file_);
  std::memcpy(CMSG_DATA(head), &file_, sizeof file_);
  ssize_t sent = 0;
  do {
    sent = sendmsg(client.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == sizeof answer;
}

}  // namespace ddp::comm::shm
