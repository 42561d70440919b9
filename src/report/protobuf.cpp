#include "report/protobuf.hpp"

#include <bit>
#include <cstddef>

namespace ddp::report {
namespace {

void append_little_endian(std::string& bytes, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xFFU);
}

}  // namespace

void append_fixed32(std::string& bytes, std::uint32_t value) { append_little_endian(bytes, value, 4); }
void append_fixed64(std::string& bytes, std::uint64_t value) { append_little_endian(bytes, value, 8); }

ProtobufMessage& ProtobufMessage::integer(unsigned field, std::int64_t value) {
  key(field, Wire::varint);
  varint(static_cast<std::uint64_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::float32(unsigned field, float value) {
  key(field, Wire::fixed32);
  append_fixed32(bytes_, std::bit_cast<std::uint32_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::float64(unsigned field, double value) {
  key(field, Wire::fixed64);
  append_fixed64(bytes_, std::bit_cast<std::uint64_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::packed(unsigned field, std::span<const double> values) {
  key(field, Wire::length);
  varint(values.size_bytes());
  for (const double value : values) append_fixed64(bytes_, std::bit_cast<std::uint64_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::text(unsigned field, std::string_view bytes) {
  key(field, Wire::length);
  varint(bytes.size());
  bytes_ += bytes;
  return *this;
}

void ProtobufMessage::key(unsigned field, Wire wire) { varint((field << 3U) | static_cast<unsigned>(wire)); }

void ProtobufMessage::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7U) bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
  bytes_ += static_cast<char>(value);
}

}  // namespace ddp::report
