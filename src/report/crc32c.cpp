#include "report/crc32c.hpp"

#include <array>

namespace ddp::report {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41 with its bits reversed

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1U) ^ ((rest & 1U) != 0 ? kPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}

constexpr auto kTable = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t rest = ~std::uint32_t{0};
  for (const char byte : bytes) rest = (rest >> 8U) ^ kTable[(rest ^ static_cast<unsigned char>(byte)) & 0xFFU];
  return ~rest;
}

}  // namespace ddp::report
