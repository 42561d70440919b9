#include "train/checkpoint/checksum.hpp"

#include <array>
#include <cstring>

namespace ddp::checkpoint {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = (table[i] >> 1U) ^ (table[i] & 1U ? 0xedb88320U : 0U);
  }
  return table;
}

}  // namespace

void Checksum::add(std::string_view bytes) {
  for (; !bytes.empty() && bytes_ % kWord != 0; bytes.remove_prefix(1)) {
    pending_ |= std::uint64_t{static_cast<unsigned char>(bytes.front())} << (8 * (bytes_++ % kWord));
    if (bytes_ % kWord == 0) add_word(pending_);
  }
  std::uint64_t word = 0;
  for (; bytes.size() >= kWord; bytes.remove_prefix(kWord), bytes_ += kWord) {
    std::memcpy(&word, bytes.data(), kWord);
    add_word(word);
  }
  if (bytes.empty()) return;
  pending_ = 0;
  std::memcpy(&pending_, bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

std::uint64_t Checksum::result() const {
  auto all = *this;
  if (bytes_ % kWord != 0) all.add_word(pending_);
  all.add_word(bytes_);
  return all.hash_;
}

std::uint32_t crc32(std::string_view bytes) {
  static constexpr auto table = crc_table();
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xffU] ^ (crc >> 8U);
  return ~crc;
}

}  // namespace ddp::checkpoint
