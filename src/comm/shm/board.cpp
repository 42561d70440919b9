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

// A peer that is at the same place is there within microseconds, less than a sleep and a wake in the kernel take. Where
// ranks share cores, the one that is waited for needs this one's.
Patience Patience::for_ranks(int ranks) {
  if (ranks <= allowed_cores()) return {.spins = 1000, .yields = 20};
  return {.spins = 20, .yields = 20};
}

std::uint64_t Board::bytes_for(int ranks) {
  const auto count = static_cast<std::uint64_t>(ranks);
  return lines_bytes(count) + counters_bytes(count) + entries_bytes(count) + payloads_bytes(count) + count * 2 * kStage;
}

std::uint64_t Board::lines_bytes(std::uint64_t ranks) { return padded(ranks * sizeof(Line)); }
std::uint64_t Board::counters_bytes(std::uint64_t ranks) { return padded(kSlots * ranks * sizeof(Counters)); }
std::uint64_t Board::entries_bytes(std::uint64_t ranks) { return padded(kSlots * ranks * sizeof(Entry)); }
std::uint64_t Board::payloads_bytes(std::uint64_t ranks) { return kSlots * ranks * kPayload; }

Board::Board(std::byte* memory, int rank, int ranks, Patience patience)
    : rank_(rank),
      ranks_(ranks),
      patience_(patience),
      spins_(patience.spins),
      lines_(reinterpret_cast<Line*>(memory)),
      counters_(reinterpret_cast<Counters*>(memory + lines_bytes(static_cast<std::uint64_t>(ranks)))),
      entries_(reinterpret_cast<Entry*>(reinterpret_cast<std::byte*>(counters_) +
                                        counters_bytes(static_cast<std::uint64_t>(ranks)))),
      payloads_(reinterpret_cast<std::byte*>(entries_) + entries_bytes(static_cast<std::uint64_t>(ranks))),
      stages_(payloads_ + payloads_bytes(static_cast<std::uint64_t>(ranks))) {}

std::atomic<std::uint64_t>& Board::claimed(std::uint64_t call, int share) const {
  return counters_[index_of(call, share)].claimed;
}

std::atomic<std::uint64_t>& Board::done(std::uint64_t call) const { return counters_[index_of(call, ranks_ - 1)].done; }

std::uint64_t Board::index_of(std::uint64_t call, int rank) const {
  return call % kSlots * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank);
}

std::byte* Board::stage(int rank, std::uint64_t exchange) const {
  return stages_ + (2 * static_cast<std::uint64_t>(rank) + exchange % 2) * kStage;
}

bool Board::has_room() {
  const auto call = line(rank_).entered.load();
  if (call < room_until_) return true;
  auto first_in_use = line(rank_).left.load();
  for (int rank = 0; rank < ranks_; ++rank) first_in_use = std::min(first_in_use, line(rank).left.load());
  room_until_ = first_in_use + kSlots;
  return call < room_until_;
}

Entry& Board::next_entry() { return entries_[index_of(line(rank_).entered.load(), rank_)]; }

std::byte* Board::next_payload() { return payloads_ + index_of(line(rank_).entered.load(), rank_) * kPayload; }

void Board::prepare_chunks(std::uint32_t chunks) {
  const auto call = line(rank_).entered.load();
  for (int share = 0; share < ranks_; ++share)
    if (share_begin(chunks, share) < share_begin(chunks, share + 1)) renew(claimed(call, share), first_count(call));
  renew(done(call), first_count(call));
}

std::uint64_t Board::enter() {
  auto& own = line(rank_);
  const auto call = own.entered.load();
  own.entered.store(call + 1);
  if (has_all(call)) wake_sleepers();
  return call;
}

const Entry& Board::entry(std::uint64_t call, int rank) const { return entries_[index_of(call, rank)]; }

const std::byte* Board::payload(std::uint64_t call, int rank) const {
  return payloads_ + index_of(call, rank) * kPayload;
}

std::optional<std::uint32_t> Board::claim(std::uint64_t call, std::uint32_t chunks) {
  const auto first = first_count(call);
  for (int i = 0; i < ranks_; ++i) {
    const int share = (rank_ + i) % ranks_;
    const auto begin = share_begin(chunks, share), length = share_begin(chunks, share + 1) - begin;
    if (length == 0) continue;
    auto& count = claimed(call, share);
    auto seen = count.load();
    while (seen - first < length)
      if (count.compare_exchange_weak(seen, seen + 1)) return begin + static_cast<std::uint32_t>(seen - first);
  }
  return std::nullopt;
}

void Board::finish_chunk(std::uint64_t call, std::uint32_t chunks) {
  if (done(call).fetch_add(1) + 1 == first_count(call) + chunks) wake_sleepers();
}

bool Board::is_done(std::uint64_t call, std::uint32_t chunks) const {
  return done(call).load() >= first_count(call) + chunks;
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
    has_woken_ = true;
  }
}

void Board::yield() { ::sched_yield(); }

}  // namespace ddp::comm::shm
