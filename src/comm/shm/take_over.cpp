#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "comm/shm/hand_over.hpp"
#include "comm/shm/hand_over_wire.hpp"
#include "comm/shm/unavailable.hpp"

namespace ddp::comm::shm {
namespace {

using watch::Clock;
using watch::Descriptor;
using watch::error_text;

constexpr std::size_t kMostDescriptors = 8;  // room for more than the one that is right, so that none stays open

/// When to give up, and the words for it.
struct Limit {
  std::chrono::milliseconds whole;
  Clock::time_point end = Clock::now() + whole;

  void require_time() const {
    if (Clock::now() < end) return;
    throw Unavailable("rank 0 did not hand over its memory within " + std::to_string(whole.count()) + " ms");
  }
};

Descriptor connected(const std::string& name, const Limit& limit) {
  const auto address = abstract_address(name);
  if (!address) throw Unavailable("rank 0's offer of its memory cannot be read");
  Descriptor socket = packet_socket();
  if (!socket) throw Unavailable("a Unix socket: " + error_text(errno));
  while (connect(socket.get(), address->get(), address->length) != 0) {
    if (errno == EAGAIN) {  // so many wait there that the kernel takes no more
      limit.require_time();
      watch::poll_until({}, std::min(limit.end, Clock::now() + std::chrono::milliseconds(1)));
    } else if (errno != EINTR) {
      throw Unavailable("rank 0's memory is not on this host: " + error_text(errno));
    }
  }
  return socket;
}

void require_user(const Descriptor& socket, uid_t user) {
  const auto owner = user_of(socket);
  if (owner == user) return;
  throw Unavailable("rank 0's memory is offered by " +
                    (owner ? "user " + std::to_string(*owner) : std::string("an unknown user")) + ", not by user " +
                    std::to_string(user));
}

[[noreturn]] void refused() {
  throw Unavailable("rank 0 refused to hand over its memory: another user's, job's or version's process asked");
}

void ask(const Descriptor& socket, const Offer& offer, std::uint32_t rank) {
  Request request{.magic = kMagic, .version = kVersion, .rank = rank};
  std::copy_n(offer.token.begin(), std::min(offer.token.size(), request.token.size()), request.token.begin());
  ssize_t sent = 0;
  do {
    sent = send(socket.get(), &request, sizeof request, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent != sizeof request) refused();
}

/// All descriptors that came with a message.
std::vector<Descriptor> descriptors_of(msghdr& message) {
  std::vector<Descriptor> result;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + CMSG_LEN(sizeof(int)) <= head->cmsg_len; at += sizeof(int)) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(head) + at, sizeof file);
      result.emplace_back(file);
    }
  }
  return result;
}

/// The answer, once it is there.
ssize_t receive(const Descriptor& socket, msghdr& message, const Limit& limit) {
  for (;;) {
    const ssize_t length = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_TRUNC);
    if (length > 0) return length;
    if (length == 0 || (errno != EAGAIN && errno != EINTR)) refused();
    limit.require_time();
    pollfd entry{socket.get(), POLLIN, 0};
    watch::poll_until({&entry, 1}, limit.end);
  }
}

std::pair<Descriptor, Layout> answer_from(const Descriptor& socket, const Limit& limit) {
  Answer answer;
  iovec bytes{&answer, sizeof answer};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = receive(socket, message, limit);
  std::vector<Descriptor> files = descriptors_of(message);
  const Layout layout{
      .control_bytes = answer.control_bytes, .region_bytes = answer.region_bytes, .ranks = answer.ranks};
  if (length != sizeof answer || answer.magic != kMagic || answer.version != kVersion || !layout.sane()) {
    throw Unavailable("rank 0's answer about its memory cannot be read");
  }
  if (files.size() != 1) {
    throw Unavailable("rank 0's memory did not come with its answer (has this process too many files open?)");
  }
  return {std::move(files.front()), layout};
}

}  // namespace

std::pair<Descriptor, Layout> take_over(const Offer& offer, std::uint32_t rank, std::chrono::milliseconds limit,
                                        uid_t user) {
  const Limit until{.whole = limit};
  const Descriptor socket = connected(offer.name, until);
  require_user(socket, user);
  ask(socket, offer, rank);
  return answer_from(socket, until);
}

}  // namespace ddp::comm::shm
