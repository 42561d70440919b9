#pragma once
/// pack_layout.hpp: which thread of a packing kernel copies what. The same code runs on the device and, in tests, on
/// the host.

#include <cstddef>
#include <cstdint>

// constexpr alone, with nvcc's option for it, makes empty kernels of functions with a reinterpret_cast, without a word.
#ifdef __CUDACC__
#define DDP_HOST_DEVICE __host__ __device__
#else
#define DDP_HOST_DEVICE
#endif

namespace ddp::pack {

/// A block of threads copies one chunk: four words of the widest kind for each of its threads, loaded before the first
/// is stored. Fewer leave the memory idle meanwhile, more leave too few blocks for a small bucket.
inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kWordsInFlight = 4;
inline constexpr unsigned kWidestWord = 16;
inline constexpr unsigned kChunkBytes = kThreads * kWordsInFlight * kWidestWord;

/// `elements` that lie side by side, to be copied to `offset` elements behind the start of the flat memory.
struct Segment {
  std::uintptr_t source;
  std::uint64_t offset;
  std::uint64_t elements;
};

/// The arguments of a kernel, of which CUDA guarantees 4096 bytes.
struct Table {
  static constexpr unsigned kSegments = 144;

  std::uintptr_t flat = 0;
  double factor = 1;
  std::uint32_t segments = 0;
  std::uint32_t end[kSegments] = {};  ///< the number of blocks up to and with each segment
  Segment segment[kSegments] = {};

  std::uint32_t blocks() const { return segments == 0 ? 0 : end[segments - 1]; }
};
static_assert(sizeof(Table) <= 4096);

/// What one block copies: addresses, and elements at each.
struct Chunk {
  std::uintptr_t from;
  std::uintptr_t to;
  std::uint64_t elements;
};

/// False if the table is full. A segment without elements takes no place.
inline bool add(Table& table, const Segment& segment, std::size_t element_bytes) {
  const std::uint64_t chunk = kChunkBytes / element_bytes;
  if (segment.elements == 0) return true;
  if (table.segments == Table::kSegments) return false;
  table.end[table.segments] = table.blocks() + static_cast<std::uint32_t>((segment.elements + chunk - 1) / chunk);
  table.segment[table.segments++] = segment;
  return true;
}

template <class Element>
DDP_HOST_DEVICE Chunk chunk_of(const Table& table, std::uint32_t block) {
  constexpr std::uint64_t kChunk = kChunkBytes / sizeof(Element);
  std::uint32_t low = 0;  // the first segment that ends behind the block
  for (std::uint32_t high = table.segments; low < high;) {
    const auto middle = (low + high) / 2;
    if (table.end[middle] > block)
      high = middle;
    else
      low = middle + 1;
  }
  const auto& segment = table.segment[low];
  const std::uint64_t first = (block - (low == 0 ? 0 : table.end[low - 1])) * kChunk;
  const auto left = segment.elements - first;
  return {segment.source + first * sizeof(Element), table.flat + (segment.offset + first) * sizeof(Element),
          left < kChunk ? left : kChunk};
}

/// As many elements as are moved at once.
template <class Element, unsigned Bytes>
struct alignas(Bytes) Word {
  static constexpr unsigned kElements = Bytes / sizeof(Element);
  Element element[kElements];
};

/// A thread's part of a chunk in words, all of whose threads meet each of its elements once. The last elements, too few
/// for a word, go one by one.
template <class Element, unsigned Bytes, class Change>
DDP_HOST_DEVICE void copy_words(const Chunk& chunk, unsigned thread, const Change& change) {
  using W = Word<Element, Bytes>;
  const auto* from = reinterpret_cast<const W*>(chunk.from);
  auto* to = reinterpret_cast<W*>(chunk.to);
  const auto words = static_cast<unsigned>(chunk.elements / W::kElements);
  for (unsigned first = thread; first < words; first += kThreads * kWordsInFlight) {
    W word[kWordsInFlight];
    for (unsigned k = 0; k < kWordsInFlight; ++k)
      if (first + k * kThreads < words) word[k] = from[first + k * kThreads];
    for (unsigned k = 0; k < kWordsInFlight; ++k) {
      if (first + k * kThreads >= words) break;
      for (auto& element : word[k].element) element = change(element);
      to[first + k * kThreads] = word[k];
    }
  }
  const auto* rest = reinterpret_cast<const Element*>(chunk.from);
  for (unsigned i = words * W::kElements + thread; i < chunk.elements; i += kThreads)
    reinterpret_cast<Element*>(chunk.to)[i] = change(rest[i]);
}

/// All that one thread of one block does: flat[offset + i] = change(source[i]), in the widest words that both addresses
/// allow.
template <class Element, class Change>
DDP_HOST_DEVICE void run(const Table& table, std::uint32_t block, unsigned thread, const Change& change) {
  const auto chunk = chunk_of<Element>(table, block);
  const auto both = chunk.from | chunk.to;
  if (both % kWidestWord == 0)
    copy_words<Element, kWidestWord>(chunk, thread, change);
  else if (sizeof(Element) < 4 && both % 4 == 0)
    copy_words<Element, sizeof(Element) < 4 ? 4 : sizeof(Element)>(chunk, thread, change);
  else
    copy_words<Element, sizeof(Element)>(chunk, thread, change);
}

/// Calls launch(table) for as many tables like this empty one as the segments need.
template <class Segments, class Launch>
void for_each_table(Table table, const Segments& segments, std::size_t element_bytes, const Launch& launch) {
  for (const Segment& segment : segments) {
    if (add(table, segment, element_bytes)) continue;
    launch(table);
    table.segments = 0;
    add(table, segment, element_bytes);
  }
  if (table.segments > 0) launch(table);
}

}  // namespace ddp::pack

#undef DDP_HOST_DEVICE
