#pragma once
/// mail.hpp: messages from one rank to another, through a few letters that each pair of ranks has in the receiver's
/// inbox. Apart from the collectives: messages find each other by their tags, in any order.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "comm/shm/board.hpp"

namespace ddp::comm::shm {

/// Short messages are taken out of the inbox by whoever waits for anything, so that no message holds up another one.
///
/// Threads: all members are safe; messages between the same ranks in the same direction carry different tags while they
/// are under way.
class Mail {
 public:
  using Stop = std::function<bool()>;

  /// What one letter holds: a message that is not longer is under way as soon as one is free.
  static constexpr std::size_t kLetterBytes = 64 * 1024 - 128;

  /// Of one rank's inbox.
  static std::uint64_t bytes_for(int ranks);
  /// `inboxes[r]` is rank r's: bytes_for(ranks) long, zero before the first use, aligned to a page.
  Mail(std::vector<std::byte*> inboxes, int rank);

  /// `tag` is below 2^31, the message shorter than 2^46 bytes. Returns once the message is in the other's inbox, as far
  /// as it has room. False: `stop()` was true.
  bool send(const std::byte* data, std::uint64_t bytes, int to, std::uint32_t tag, const Stop& stop);
  /// Errors: std::length_error where the message has another length.
  bool receive(std::byte* data, std::uint64_t bytes, int from, std::uint32_t tag, const Stop& stop);

 private:
  // Together they hold what a pair has under way: a stage's worth.
  static constexpr std::size_t kLetters = 4;
  // As long as the Board's.
  static constexpr std::chrono::milliseconds kSlice{10};

  // A full letter's state names the piece of the message that is in it.
  static constexpr std::uint64_t kEmpty = 0, kTaken = 1;
  static constexpr std::uint64_t full(std::uint32_t tag, std::uint64_t offset) {
    return (std::uint64_t{tag} << 32) + ((offset / kLetterBytes) << 1) + 2;
  }
  static constexpr bool is_begin(std::uint64_t state) { return state >= 2 && (state & 0xFFFFFFFE) == 2; }
  struct alignas(4096) Letter {
    std::atomic<std::uint64_t> state;
    std::atomic<std::uint64_t> message_bytes;
    alignas(2 * kCacheLine) std::array<std::byte, kLetterBytes> data;
  };
  struct alignas(4096) Door {
    Word bell;
    Word sleepers;
  };

  Door& door(int rank) const { return *reinterpret_cast<Door*>(inboxes_[static_cast<std::size_t>(rank)]); }
  Letter* letters(int from, int to) const;
  Letter* take_empty(int to) const;
  Letter* take_full(int from, std::uint64_t state) const;
  void empty(Letter& letter, int from) const;
  void stash_short();
  std::optional<std::vector<std::byte>> stashed(int from, std::uint64_t state);
  void ring(int rank) const;
  template <class Find>
  bool wait_for(Find find, const Stop& stop);

  const std::vector<std::byte*> inboxes_;
  const int rank_;
  std::mutex mutex_;
  std::map<std::pair<int, std::uint64_t>, std::vector<std::byte>> stash_;  // by sender and state
};

}  // namespace ddp::comm::shm
