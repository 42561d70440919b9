#pragma once
/// hand_over.hpp: gives the shared memory of a group's rank 0 to the other ranks of its host.
///
/// Rank 0 listens on an abstract Unix socket, which needs no file and ends with the process; its name and a
/// token reach the others through the ranks' store. Whoever gets the memory has thereby proved to be on
/// the same host: a host's name proves nothing.

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/shm/mapping.hpp"
#include "comm/watch_socket.hpp"

namespace ddp::comm::shm {

/// Where rank 0 can be asked, and what shows that one may.
struct Offer {
  std::string name;
  std::string token;

  std::string text() const;
  /// Errors: Unavailable where text() never gave this.
  static Offer parsed(std::string_view text);
};

/// Rank 0's side. Threads: one at a time.
/// Lifetime: `file` stays the caller's and open as long as this lives; the destructor ends the offer.
class HandOverServer {
 public:
  /// Only processes of `user` are answered. Errors: Unavailable.
  HandOverServer(int file, const Layout& layout, uid_t user = geteuid());

  const Offer& offer() const { return offer_; }
  /// Answers whoever comes, at most for `limit`, or until all ranks but this one have the memory. Call it again
  /// and again. Strangers are turned away; who connects and says nothing delays nobody.
  void serve(std::chrono::milliseconds limit);
  /// How many ranks have been sent the memory.
  int served() const { return static_cast<int>(served_.size()); }

 private:
  bool all_served() const { return served_.size() + 1 >= layout_.ranks; }
  void wait(watch::Clock::time_point deadline) const;
  void accept_all(watch::Clock::time_point deadline);
  void answer_all();
  bool make_room();
  bool done_with(const watch::Descriptor& client);
  bool send_memory(const watch::Descriptor& client) const;

  const int file_;
  const Layout layout_;
  const uid_t user_;
  const Offer offer_;
  watch::Descriptor listener_;
  std::vector<watch::Descriptor> clients_;  // that have not said anything yet; the oldest first
  std::set<std::uint32_t> served_;
};

/// The other ranks' side: the memory's file, for Mapping::open(). Only a server of `user` is believed.
/// Errors: Unavailable, in words; at once where nobody listens on this host, else within `limit`.
std::pair<watch::Descriptor, Layout> take_over(const Offer& offer, std::uint32_t rank, std::chrono::milliseconds limit,
                                               uid_t user = geteuid());

}  // namespace ddp::comm::shm
