#include "comm/shm/transfers.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>

namespace ddp::comm::shm {
namespace {

// Not smaller: all ranks write the counter from which a chunk is taken. Not larger: a chunk of all ranks fits in a
// core's cache, and the last chunk is what the other ranks wait for.
constexpr std::uint64_t kSmallestChunk = 16 * 1024;
constexpr std::uint64_t kLargestChunk = 128 * 1024;
constexpr std::uint64_t kChunksPerRank = 4;

std::uint64_t chunk_bytes(std::uint64_t bytes, int ranks) {
  const auto share = bytes / (kChunksPerRank * static_cast<std::uint64_t>(ranks));
  return std::clamp(share, kSmallestChunk, kLargestChunk) / kCacheLine * kCacheLine;
}

std::uint32_t pieces_of(std::uint64_t bytes, std::uint64_t piece) {
  return static_cast<std::uint32_t>((bytes + piece - 1) / piece);
}

// Where rank `index` of `count` begins in a piece of `elements`.
std::uint64_t share_begin(std::uint64_t elements, int index, int count) {
  return elements * static_cast<std::uint64_t>(index) / static_cast<std::uint64_t>(count);
}

Range part_in(const std::byte* payload, int rank) {
  Range part;
  std::memcpy(&part, payload + static_cast<std::size_t>(rank) * sizeof part, sizeof part);
  return part;
}

constexpr std::size_t table_bytes(int ranks) { return static_cast<std::size_t>(ranks) * sizeof(Range); }
static_assert(table_bytes(kMostRanks) < kPayload, "the table has room, and so has short data beside it");

bool fits(std::uint64_t stream, int ranks) { return stream <= kPayload - table_bytes(ranks); }

// Says stop only once `stop` has said so for a while.
class Patient {
 public:
  explicit Patient(const Transfers::Stop& stop) : stop_(stop) {}
  bool operator()() const {
    if (!stop_()) {
      since_.reset();
      return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!since_) since_ = now;
    return now - *since_ >= kGrace;
  }

 private:
  // Longer than a busy machine takes to let the other ranks run; short against what a user notices.
  static constexpr std::chrono::milliseconds kGrace{100};
  const Transfers::Stop& stop_;
  mutable std::optional<std::chrono::steady_clock::time_point> since_;
};

}  // namespace

std::uint32_t Transfers::chunks_of(std::uint64_t bytes) const {
  return pieces_of(bytes, chunk_bytes(bytes, board_.ranks()));
}

void Transfers::enter(Call& call) {
  auto& entry = board_.next_entry();
  entry.terms = call.terms;
  entry.offset = Entry::kPrivate;
  entry.stream = call.stream_bytes;
  entry.label.bytes = call.label.bytes;
  entry.label.compared = call.label.compared;
  std::memcpy(entry.label.text.data(), call.label.text.data(), call.label.bytes);
  auto* const payload = board_.next_payload();
  if (call.terms.kind == Kind::reduce) {
    if (call.is_shared) {
      entry.offset = static_cast<std::uint64_t>(call.data - memory_);
      board_.prepare_chunks(chunks_of(call.terms.bytes));
    } else if (call.terms.bytes <= kPayload) {
      std::memcpy(payload, call.data, call.terms.bytes);
    }
  } else if (call.terms.kind == Kind::move) {
    const auto table = table_bytes(board_.ranks());
    std::memcpy(payload, call.parts.data(), table);
    if (call.stream_bytes > 0 && fits(call.stream_bytes, board_.ranks()))
      std::memcpy(payload + table, call.stream, call.stream_bytes);
  }
  call.number = board_.enter();
}

bool Transfers::run(Call& call, const Stop& stop_waiting) {
  if (!board_.wait([&] { return board_.has_all(call.number); }, stop_waiting)) return false;
  const Patient patient(stop_waiting);
  const Stop stop = std::cref(patient);
  bool has_ended = true;
  if (!labels_agree(call))
    call.has_differed = true;
  else if (!all_agree(call))
    call.trouble = described(call);
  else if (call.terms.kind == Kind::reduce)
    has_ended = reduce(call, stop);
  else if (call.terms.kind == Kind::move)
    has_ended = move(call, stop);
  if (has_ended) board_.leave(call.number);
  return has_ended;
}

bool Transfers::all_enter_soon(const Call& call) {
  return board_.wait_awake([&] { return board_.has_all(call.number); });
}

bool Transfers::can_run_alone(const Call& call) const {
  return board_.has_all(call.number) && all_agree(call) && call.terms.kind == Kind::reduce && all_share(call);
}

// Where some ranks have labels and others none, their calls are of different sorts.
bool Transfers::labels_agree(Call& call) const {
  if (call.label.bytes == 0) return true;
  bool agree = true;
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const auto& label = board_.entry(call.number, rank).label;
    if (label.bytes == 0) return true;
    agree = agree && label.agrees_with(call.label);
  }
  for (int rank = 0; (!agree || call.wants_labels) && rank < board_.ranks(); ++rank)
    call.labels.push_back(board_.entry(call.number, rank).label);
  return agree;
}

bool Transfers::all_share(const Call& call) const {
  for (int rank = 0; rank < board_.ranks(); ++rank)
    if (board_.entry(call.number, rank).offset == Entry::kPrivate) return false;
  return true;
}

bool Transfers::all_agree(const Call& call) const {
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const auto& entry = board_.entry(call.number, rank);
    if (entry.terms != call.terms || (entry.label.bytes == 0) != (call.label.bytes == 0)) return false;
  }
  return true;
}

std::string Transfers::described(const Call& call) const {
  std::string text = "the ranks' calls differ: ";
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const auto& terms = board_.entry(call.number, rank).terms;
    text += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank);
    text += terms.kind == Kind::reduce ? " reduces " + std::to_string(terms.bytes) + " bytes of type " +
                                             std::to_string(static_cast<std::uint32_t>(terms.type))
            : terms.kind == Kind::move ? " moves bytes"
                                       : " meets the others";
  }
  return text;
}

bool Transfers::reduce(Call& call, const Stop& stop) {
  int sharing = 0;
  for (int rank = 0; rank < board_.ranks(); ++rank)
    sharing += board_.entry(call.number, rank).offset != Entry::kPrivate ? 1 : 0;
  if (sharing == board_.ranks()) return reduce_shared(call, stop);
  if (sharing > 0 || call.terms.bytes > kPayload) return reduce_staged(call, stop);
  reduce_payloads(call);
  return true;
}

void Transfers::reduce_payloads(Call& call) {
  const auto ranks = static_cast<std::size_t>(board_.ranks());
  std::array<const std::byte*, kMostRanks> inputs;
  for (std::size_t rank = 0; rank < ranks; ++rank) inputs[rank] = board_.payload(call.number, static_cast<int>(rank));
  combine(call.terms.type, call.terms.combine, inputs.data(), ranks, &call.data, 1,
          call.terms.bytes / bytes_of(call.terms.type));
}

bool Transfers::reduce_shared(Call& call, const Stop& stop) {
  const auto bytes = call.terms.bytes, chunk = chunk_bytes(bytes, board_.ranks());
  const auto chunks = chunks_of(bytes);
  const auto ranks = static_cast<std::size_t>(board_.ranks());
  std::array<std::byte*, kMostRanks> places;
  while (const auto index = board_.claim(call.number, chunks)) {
    const auto begin = *index * chunk, length = std::min(chunk, bytes - begin);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      places[rank] = memory_ + board_.entry(call.number, static_cast<int>(rank)).offset + begin;
    combine(call.terms.type, call.terms.combine, places.data(), ranks, places.data(), ranks,
            length / bytes_of(call.terms.type));
    board_.finish_chunk(call.number, chunks);
  }
  return board_.wait([&] { return board_.is_done(call.number, chunks); }, stop);
}

bool Transfers::reduce_staged(Call& call, const Stop& stop) {
  call.is_bound = true;
  for (std::uint64_t begin = 0; begin < call.terms.bytes; begin += kStage)
    if (!reduce_piece(call, begin, std::min(kStage, call.terms.bytes - begin), stop)) return false;
  return true;
}

// Every rank lays its piece on its stage, combines its share of it and takes the other shares from those who did.
bool Transfers::reduce_piece(Call& call, std::uint64_t begin, std::uint64_t bytes, const Stop& stop) {
  const auto exchange = board_.next_exchange();
  const int rank = board_.rank(), ranks = board_.ranks();
  auto* const own = call.data + begin;
  auto* const stage = board_.stage(rank, exchange);
  std::memcpy(stage, own, bytes);
  if (!meet_step(stop)) return false;

  const auto width = bytes_of(call.terms.type), elements = bytes / width;
  const auto offset = [&](int index) { return share_begin(elements, index, ranks) * width; };
  std::vector<const std::byte*> inputs;
  for (int other = 0; other < ranks; ++other) inputs.push_back(board_.stage(other, exchange) + offset(rank));
  std::byte* const outputs[] = {own + offset(rank), stage + offset(rank)};
  combine(call.terms.type, call.terms.combine, inputs.data(), inputs.size(), outputs, 2,
          (offset(rank + 1) - offset(rank)) / width);
  if (!meet_step(stop)) return false;

  for (int other = 0; other < ranks; ++other)
    if (other != rank)
      std::memcpy(own + offset(other), board_.stage(other, exchange) + offset(other),
                  offset(other + 1) - offset(other));
  return true;
}

bool Transfers::meet_step(const Stop& stop) {
  const auto step = board_.step();
  return board_.wait([&] { return board_.all_reached(step); }, stop);
}

bool Transfers::move(Call& call, const Stop& stop) {
  call.is_bound = true;
  const int rank = board_.rank(), ranks = board_.ranks();
  std::uint64_t longest = 0;
  for (int other = 0; other < ranks; ++other) {
    const auto& entry = board_.entry(call.number, other);
    const auto part = part_in(board_.payload(call.number, other), rank);
    const auto expected = call.targets[static_cast<std::size_t>(other)].bytes;
    if (part.bytes() != expected)
      call.trouble = "rank " + std::to_string(other) + " sends " + std::to_string(part.bytes()) + " bytes, " +
                     std::to_string(expected) + " are expected";
    if (other == rank)
      take_part(call, rank, call.stream, {0, call.stream_bytes});
    else if (fits(entry.stream, ranks))
      take_part(call, other, board_.payload(call.number, other) + table_bytes(ranks), {0, entry.stream});
    if (!fits(entry.stream, ranks)) longest = std::max(longest, entry.stream);
  }
  for (std::uint64_t begin = 0; begin < longest; begin += kStage) {
    const auto exchange = board_.next_exchange();
    if (!fits(call.stream_bytes, ranks) && begin < call.stream_bytes)
      std::memcpy(board_.stage(rank, exchange), call.stream + begin, std::min(kStage, call.stream_bytes - begin));
    if (!meet_step(stop)) return false;
    for (int other = 0; other < ranks; ++other) {
      const auto stream = board_.entry(call.number, other).stream;
      if (other == rank || fits(stream, ranks) || begin >= stream) continue;
      take_part(call, other, board_.stage(other, exchange), {begin, std::min(begin + kStage, stream)});
    }
  }
  return true;
}

// Copies what of rank `from`'s part for this rank lies in `window` of its stream, which is at `piece`.
void Transfers::take_part(Call& call, int from, const std::byte* piece, Range window) const {
  const auto part = part_in(board_.payload(call.number, from), board_.rank());
  const auto& target = call.targets[static_cast<std::size_t>(from)];
  const auto begin = std::max(part.begin, window.begin), end = std::min(part.end, window.end);
  if (begin >= end || part.bytes() != target.bytes) return;
  std::memcpy(target.data + (begin - part.begin), piece + (begin - window.begin), end - begin);
}

}  // namespace ddp::comm::shm
