#pragma once
/// board.hpp: what the ranks of a host tell each other in shared memory: which calls they have entered and with which
/// terms, which pieces of a call are taken and done, how far they are in lock step, and who sleeps.
///
/// The protocol, for each rank:
///   prepare_chunks() -> enter(n) -> has_all(n) -> claim(n) and finish_chunk(n), until is_done(n) -> leave(n)
/// A slot serves call n, then n + kSlots, once every rank has left n. Its generation is in each of its counters, so
/// that a rank that was asleep meanwhile takes nothing of a later call. tests/models/board.pml is a model of it.
///
/// Memory order: what a rank wrote before enter() is visible to who has seen has_all(); before finish_chunk(), to who
/// has seen is_done(); before step(), to who has seen all_reached(). A word that somebody may sleep on is written and
/// then the sleepers are looked for; who wants to sleep says so and then looks at the word: both in the one order of
/// sequentially consistent operations, so that one of the two sees the other.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "comm/shm/combine.hpp"
#include "comm/shm/futex.hpp"

namespace ddp::comm::shm {

inline constexpr std::size_t kCacheLine = 64;
/// Calls that a rank may have entered while another one still works on the first of them.
inline constexpr std::uint64_t kSlots = 64;
/// What travels with an entry: a small message is there as soon as its ranks are.
inline constexpr std::size_t kPayload = 8192;
/// More of them have no room in a payload for what each is to get.
inline constexpr int kMostRanks = 256;
/// Half of a rank's stage: it and those of a few other ranks stay in a core's cache.
inline constexpr std::size_t kStage = 256 * 1024;

enum class Kind : std::uint8_t { meet, reduce, move };

/// What the ranks must agree on.
struct Terms {
  Kind kind = Kind::meet;
  Type type = Type::uint8;
  Combine combine = Combine::sum;
  std::uint64_t bytes = 0;  ///< of a reduction

  bool operator==(const Terms&) const = default;
};

/// What the caller calls it, plain bytes.
struct Label {
  std::uint16_t bytes = 0;     ///< 0: none
  std::uint16_t compared = 0;  ///< so many of them, the first ones, are the same on all ranks
  std::array<std::byte, 140> text;

  bool agrees_with(const Label& other) const {
    return bytes == other.bytes && compared == other.compared &&
           std::memcmp(text.data(), other.text.data(), compared) == 0;
  }
};

/// One rank's word on one call; a short label lies in its first cache line. Plain memory: enter() publishes it and its
/// payload, and they stand until every rank has left the call.
struct alignas(kCacheLine) Entry {
  static constexpr std::uint64_t kPrivate = ~std::uint64_t{0};
  Terms terms;
  std::uint64_t offset = kPrivate;  ///< of a reduction's data in the shared memory
  std::uint64_t stream = 0;         ///< bytes that a move sends
  Label label;
};

/// How long to wait for others awake: a spinning rank takes the core that the others may need.
struct Patience {
  int spins = 0;   ///< looks at memory alone, at most: fewer where the last ones were in vain
  int yields = 0;  ///< looks after which the core goes to whoever else wants it

  /// For `ranks` on the cores that this process may use.
  static Patience for_ranks(int ranks);
};

/// One rank's view. Threads: one at a time, but for enter() and what prepares it (has_room(), next_entry(), ...), which
/// one at a time may call beside it.
class Board {
 public:
  static std::uint64_t bytes_for(int ranks);
  /// `memory` is bytes_for(ranks) long, zero before the first use, aligned to a page.
  Board(std::byte* memory, int rank, int ranks, Patience patience);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// True if this rank's next call has a slot.
  bool has_room();
  /// The entry to fill in for the next call, and its payload [kPayload]; need has_room().
  Entry& next_entry();
  std::byte* next_payload();
  /// Before enter(), for a call of so many chunks that this rank may claim.
  void prepare_chunks(std::uint32_t chunks);
  /// Publishes entry and payload; returns the call's number.
  std::uint64_t enter();
  bool has_all(std::uint64_t call) const {
    for (int rank = 0; rank < ranks_; ++rank)
      if (line(rank).entered.load() <= call) return false;
    return true;
  }
  const Entry& entry(std::uint64_t call, int rank) const;
  const std::byte* payload(std::uint64_t call, int rank) const;

  /// A piece of `chunks` that nobody has taken; needs has_all(), and that all have prepared for it. Each rank has a
  /// share of them, adjacent ones, in which it begins: so it meets the same memory in each step, in order. Then it
  /// takes those of the others.
  std::optional<std::uint32_t> claim(std::uint64_t call, std::uint32_t chunks);
  void finish_chunk(std::uint64_t call, std::uint32_t chunks);
  bool is_done(std::uint64_t call, std::uint32_t chunks) const;
  /// This rank will not look at the call again. In the order of the calls.
  void leave(std::uint64_t call);

  /// Lock step, for what every rank must do itself. Which half of the stages is used alternates with each exchange of
  /// pieces, so that it is written anew only after all have read what was there before.
  std::uint64_t step();
  bool all_reached(std::uint64_t step) const;
  std::byte* stage(int rank, std::uint64_t exchange) const;
  std::uint64_t next_exchange() { return exchanges_++; }

  /// Waits for `condition`, which looks at this board, for some microseconds without sleep.
  template <class Condition>
  bool wait_awake(const Condition& condition) {
    if (condition()) return true;
    for (int i = 0; i < spins_; ++i) {
      pause();
      if (!condition()) continue;
      spins_ = std::min(2 * spins_, patience_.spins);
      return true;
    }
    spins_ = std::max(spins_ / 2, kFewestSpins);
    for (int i = 0; i < patience_.yields; ++i) {
      if (condition()) return true;
      yield();
    }
    if (!has_woken_.exchange(false)) return false;
    const auto limit = std::chrono::steady_clock::now() + kUntilAwake;
    while (std::chrono::steady_clock::now() < limit) {
      if (condition()) return true;
      yield();
    }
    return false;
  }

  /// Waits for it, asleep after a while. False: `stop()` was true, which is asked a hundred times a second.
  template <class Condition, class Stop>
  bool wait(const Condition& condition, const Stop& stop) {
    if (wait_awake(condition)) return true;
    auto& own = line(rank_);
    for (;;) {
      const auto bell = own.bell.load();
      own.asleep.store(1);
      const bool is_met = condition();
      if (!is_met) futex_wait(own.bell, bell, kSlice);
      own.asleep.store(0);
      if (is_met || condition()) return true;
      if (stop()) return false;
    }
  }

 private:
  // Not shorter: an idle rank wakes that often. Not longer: so late is it known that a peer was killed.
  static constexpr std::chrono::milliseconds kSlice{10};
  // A rank that waits for one that wants the same core, while other processes have the other cores, waits for itself.
  static constexpr int kFewestSpins = 20;
  // A rank that was woken on a core that idled is there after some 50 us. Who falls asleep just before would have to be
  // woken in turn, and so on for ever.
  static constexpr std::chrono::microseconds kUntilAwake{200};

  // What different ranks write does not share a line.
  // NOLINTBEGIN(clang-analyzer-optin.performance.Padding)
  struct alignas(2 * kCacheLine) Line {  // two lines: processors fetch them in pairs
    std::atomic<std::uint64_t> entered, steps;
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> left;  // read once in kSlots calls
    alignas(2 * kCacheLine) Word bell;
    Word asleep;
  };
  struct alignas(2 * kCacheLine) Counters {  // a call of one chunk has both of its counters in one line
    std::atomic<std::uint64_t> claimed, done;
  };
  // NOLINTEND(clang-analyzer-optin.performance.Padding)
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share it");

  std::uint32_t share_begin(std::uint32_t chunks, int share) const {
    return static_cast<std::uint32_t>(std::uint64_t{chunks} * static_cast<std::uint64_t>(share) /
                                      static_cast<std::uint64_t>(ranks_));
  }
  static std::uint64_t lines_bytes(std::uint64_t ranks);
  static std::uint64_t counters_bytes(std::uint64_t ranks);
  static std::uint64_t entries_bytes(std::uint64_t ranks);
  static std::uint64_t payloads_bytes(std::uint64_t ranks);
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }
  static void yield();
  Line& line(int rank) const { return lines_[rank]; }
  std::atomic<std::uint64_t>& done(std::uint64_t call) const;
  std::atomic<std::uint64_t>& claimed(std::uint64_t call, int share) const;
  std::uint64_t index_of(std::uint64_t call, int rank) const;
  void wake_sleepers();

  const int rank_, ranks_;
  const Patience patience_;
  int spins_;
  std::atomic<bool> has_woken_{false};  // a rank that had fallen asleep, since the last wait that was in vain
  Line* const lines_;                   // [ranks]
  Counters* const counters_;   // [kSlots, ranks]: chunks claimed of each rank's share; in the last, chunks done
  Entry* const entries_;       // [kSlots, ranks]; apart from the payloads, so that they stay in the cache
  std::byte* const payloads_;  // [kSlots, ranks, kPayload]
  std::byte* const stages_;    // [ranks, 2, kStage]
  std::uint64_t exchanges_ = 0;
  std::uint64_t room_until_ = 0;  // of the calls before this one each has a slot
};

}  // namespace ddp::comm::shm
