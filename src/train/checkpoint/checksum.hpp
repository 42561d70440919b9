#pragma once
/// checksum.hpp: a number that shows whether bytes are what they were.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddp::checkpoint {

/// FNV-1a (Fowler, Noll, Vo) over words of 8 bytes instead of bytes: each step is a bijection, so that no damage inside
/// one word goes unnoticed. It guards against accidents, not against intent. The same however the bytes are divided.
class Checksum {
 public:
  void add(std::string_view bytes);
  std::uint64_t result() const;

 private:
  void add_word(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3U; }

  std::uint64_t hash_ = 0xcbf29ce484222325U;
  std::uint64_t pending_ = 0;  ///< bytes of a word that is not full
  std::size_t bytes_ = 0;
};

/// CRC-32 as in zip archives.
std::uint32_t crc32(std::string_view bytes);

}  // namespace ddp::checkpoint
