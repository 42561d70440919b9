#include "comm/shm/board.hpp"

#include <sched.h>

#include <algorithm>

#include "base/cores.hpp"

namespace ddp::comm::shm {
namespace {

// A counter carries the generation of its slot in the upper half.
constexpr std::uint64_t kGeneration = std::uint64_t{1} << 32;

constexpr std::uint64_t first_count(std::uint64_t call) { return (call / kSlots + 1) * kGeneration; }

constexpr std::uint64_t padded(std::uint64_t bytes) {
  constexpr std::uint64_t page = 4096;
  return (bytes + page - 1) / page * page;
}

// The first rank of a new generation sets the counter; the others find it set.
void renew(std::atomic<std::uint64_t>& counter, std::uint64_t first) {
  auto seen = counter.load();
  while (seen < first && !counter.compare_exchange_weak(seen, first)) {
  }
}

}  // namespace

// A look takes some 40 ns awake. A peer that is at the same place is there within microseconds; a futex's sleep and
// wake take 7.
Patience Patience::for_ranks(int ranks) {
  if (ranks <= allowed_cores()) return {.spins = 1000, .yields = 20};
  return {.spins = 20, .yields = 20};
}

std::uint64_t Board::bytes_for(int ranks) {
  const auto count = static_cast<std::uint64_t>(ranks);
  return padded(count * sizeof(Line)) + padded(kSlots * sizeof(Slot)) + count * kSlots * sizeof(Entry) +
         count * 2 * kStage;
}

Board::Board(std::byte* memory, int rank, int ranks, Patience patience)
    : memory_(memory), rank_(rank), ranks_(ranks), patience_(patience) {}

Board::Line& Board::line(int rank) const { return reinterpret_cast<Line*>(memory_)[rank]; }

Board::Slot& Board::slot(std::uint64_t call) const {
  return reinterpret_cast<Slot*>(memory_ + padded(static_cast<std::uint64_t>(ranks_) * sizeof(Line)))[call % kSlots];
}

Entry& Board::entry_of(std::uint64_t call, int rank) const {
  const auto count = static_cast<std::uint64_t>(ranks_);
  auto* const entries = memory_ + padded(count * sizeof(Line)) + padded(kSlots * sizeof(Slot));
  return reinterpret_cast<Entry*>(entries)[call % kSlots * count + static_cast<std::uint64_t>(rank)];
}

std::byte* Board::stage(int rank, std::uint64_t exchange) const {
  const auto count = static_cast<std::uint64_t>(ranks_);
  auto* const stages =
      memory_ + padded(count * sizeof(Line)) + padded(kSlots * sizeof(Slot)) + count * kSlots * sizeof(Entry);
  return stages + (2 * static_cast<std::uint64_t>(rank) + exchange % 2) * kStage;
}

bool Board::has_room() const {
  const auto call = line(rank_).entered.load();
  if (call < kSlots) return true;
  for (int rank = 0; rank < ranks_; ++rank)
    if (line(rank).left.load() <= call - kSlots) return false;
  return true;
}

Entry& Board::next_entry() { return entry_of(line(rank_).entered.load(), rank_); }

std::uint64_t Board::enter() {
  auto& own = line(rank_);
  const auto call = own.entered.load();
  auto& counters = slot(call);
  renew(counters.claimed, first_count(call));
  renew(counters.done, first_count(call));
  own.entered.store(call + 1);
  if (has_all(call)) wake_sleepers();
  return call;
}

bool Board::has_all(std::uint64_t call) const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (line(rank).entered.load() <= call) return false;
  return true;
}

const Entry& Board::entry(std::uint64_t call, int rank) const { return entry_of(call, rank); }

std::optional<std::uint32_t> Board::claim(std::uint64_t call, std::uint32_t chunks) {
  auto& claimed = slot(call).claimed;
  auto seen = claimed.load();
  const auto first = first_count(call);
  while (seen - first < chunks) {
    if (claimed.compare_exchange_weak(seen, seen + 1)) return static_cast<std::uint32_t>(seen - first);
  }
  return std::nullopt;
}

void Board::finish_chunk(std::uint64_t call, std::uint32_t chunks) {
  if (slot(call).done.fetch_add(1) + 1 == first_count(call) + chunks) wake_sleepers();
}

bool Board::is_done(std::uint64_t call, std::uint32_t chunks) const {
  return slot(call).done.load() >= first_count(call) + chunks;
}

void Board::leave(std::uint64_t call) {
  line(rank_).left.store(call + 1);
  for (int rank = 0; rank < ranks_; ++rank)
    if (line(rank).entered.load() == call + kSlots) return wake_sleepers();  // it may wait for room
}

std::uint64_t Board::step() {
  const auto reached = line(rank_).steps.load() + 1;
  line(rank_).steps.store(reached);
  if (all_reached(reached)) wake_sleepers();
  return reached;
}

bool Board::all_reached(std::uint64_t step) const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (line(rank).steps.load() < step) return false;
  return true;
}

void Board::wake_sleepers() {
  for (int rank = 0; rank < ranks_; ++rank) {
    auto& other = line(rank);
    if (rank == rank_ || other.asleep.load() == 0 || other.asleep.exchange(0) == 0) continue;
    other.bell.fetch_add(1);
    futex_wake(other.bell);
  }
}

void Board::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

void Board::yield() { ::sched_yield(); }

}  // namespace ddp::comm::shm
