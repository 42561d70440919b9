#include "optim/pass.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <variant>

namespace ddp::optim {
namespace {

// Elements that one thread updates at a time: some 10 us, against which the call of a loop is nothing, and few enough
// to share a small model out among the threads.
constexpr std::size_t kChunk = std::size_t{1} << 15;

std::size_t element_bytes(const Piece& piece) { return c10::elementSize(piece.dtype); }

Piece part_of(const Piece& piece, std::size_t begin, std::size_t count) {
  auto part = piece;
  const auto bytes = begin * element_bytes(piece);
  part.parameter += bytes;
  part.gradient += bytes;
  for (auto& state : part.state)
    if (state != nullptr) state += bytes;
  part.count = count;
  return part;
}

std::vector<Piece> merged(const std::vector<Piece>& pieces) {
  std::vector<Piece> runs;
  for (const auto& piece : pieces)
    if (!runs.empty() && follows(runs.back(), piece) && state_follows(runs.back(), piece))
      runs.back().count += piece.count;
    else
      runs.push_back(piece);
  return runs;
}

std::vector<Piece> cut(const std::vector<Piece>& runs) {
  std::vector<Piece> chunks;
  for (const auto& run : runs)
    for (std::size_t begin = 0; begin < run.count; begin += kChunk)
      chunks.push_back(part_of(run, begin, std::min(kChunk, run.count - begin)));
  return chunks;
}

template <class T>
void update_as(const Piece& piece, const Step& step) {
  Range<T> range{reinterpret_cast<T*>(piece.parameter), reinterpret_cast<const T*>(piece.gradient), {}, piece.count};
  for (std::size_t i = 0; i < kMaxStates; ++i) range.state[i] = reinterpret_cast<T*>(piece.state[i]);
  std::visit([&](const auto& kind) { update(kind, range); }, step);
}

}  // namespace

bool follows(const Piece& piece, const Piece& next) {
  const auto bytes = piece.count * element_bytes(piece);
  return next.dtype == piece.dtype && next.step == piece.step && next.parameter == piece.parameter + bytes &&
         next.gradient == piece.gradient + bytes;
}

bool state_follows(const Piece& piece, const Piece& next) {
  const auto bytes = piece.count * element_bytes(piece);
  for (std::size_t i = 0; i < kMaxStates; ++i)
    if (next.state[i] != (piece.state[i] == nullptr ? nullptr : piece.state[i] + bytes)) return false;
  return true;
}

void run_pass(const std::vector<Piece>& pieces, const std::vector<Step>& steps) {
  const auto chunks = cut(merged(pieces));
  at::parallel_for(0, static_cast<std::int64_t>(chunks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto& chunk = chunks[static_cast<std::size_t>(i)];
      if (chunk.dtype == at::kFloat)
        update_as<float>(chunk, steps[chunk.step]);
      else
        update_as<double>(chunk, steps[chunk.step]);
    }
  });
}

}  // namespace ddp::optim
