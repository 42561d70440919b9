#pragma once
/// protobuf.hpp: messages in protobuf's wire format, written field by field. By hand, since a protobuf library in the
/// process would clash with the copy inside LibTorch.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ddp::report {

/// One message. Fields that have protobuf's default value are written like any other, which readers accept.
/// https://protobuf.dev/programming-guides/encoding
class ProtobufMessage {
 public:
  /// int32, int64 and enumerations; a negative number takes ten bytes.
  ProtobufMessage& integer(unsigned field, std::int64_t value);
  ProtobufMessage& float32(unsigned field, float value);
  ProtobufMessage& float64(unsigned field, double value);
  ProtobufMessage& packed(unsigned field, std::span<const double> values);
  ProtobufMessage& text(unsigned field, std::string_view bytes);
  ProtobufMessage& message(unsigned field, const ProtobufMessage& value) { return text(field, value.bytes()); }

  const std::string& bytes() const { return bytes_; }

 private:
  enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };
  void key(unsigned field, Wire wire);
  void varint(std::uint64_t value);

  std::string bytes_;
};

/// The bytes of a number, least significant first, as both protobuf and TensorBoard's records have them.
void append_fixed32(std::string& bytes, std::uint32_t value);
void append_fixed64(std::string& bytes, std::uint64_t value);

}  // namespace ddp::report
