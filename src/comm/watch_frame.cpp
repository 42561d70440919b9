#include "comm/watch_frame.hpp"

#include <algorithm>

namespace ddp::comm::watch {
namespace {

constexpr std::string_view kMagic = "DDPWATCH";
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kHelloHead = 8 + 4 + 4 + 4 + 2 + 2;
constexpr std::size_t kFrameHead = 4 + 1;
constexpr std::string_view kCut = " [... cut]";

std::string little_endian(std::uint64_t value, std::size_t width) {
  std::string bytes(width, '\0');
  for (std::size_t i = 0; i < width; ++i) bytes[i] = static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

BodyWriter& BodyWriter::u8(std::uint8_t value) { return text(little_endian(value, 1)); }
BodyWriter& BodyWriter::u16(std::uint16_t value) { return text(little_endian(value, 2)); }
BodyWriter& BodyWriter::u32(std::uint32_t value) { return text(little_endian(value, 4)); }
BodyWriter& BodyWriter::u64(std::uint64_t value) { return text(little_endian(value, 8)); }

BodyWriter& BodyWriter::text(std::string_view value) {
  bytes_.append(value);
  return *this;
}

std::uint64_t BodyReader::number(std::size_t width) {
  if (bytes_.size() < width) {
    ok_ = false;
    bytes_ = {};
    return 0;
  }
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(bytes_[i]);
  bytes_.remove_prefix(width);
  return value;
}

std::string BodyReader::text(std::size_t length) {
  if (bytes_.size() < length) {
    ok_ = false;
    bytes_ = {};
    return {};
  }
  std::string value(bytes_.substr(0, length));
  bytes_.remove_prefix(length);
  return value;
}

std::string bounded_text(std::string_view text, std::size_t limit) {
  std::string bounded(std::min(text.size(), limit), '\0');
  bounded.resize(copy_bounded(text, bounded));
  return bounded;
}

std::size_t copy_bounded(std::string_view text, std::span<char> into) noexcept {
  if (text.size() <= into.size()) return text.copy(into.data(), text.size());
  std::size_t kept = into.size() - std::min(into.size(), kCut.size());
  while (kept > 0 && is_continuation(text[kept])) --kept;
  text.copy(into.data(), kept);
  return kept + kCut.copy(into.data() + kept, into.size() - kept);
}

std::string encode_frame(FrameType type, std::string_view body) {
  BodyWriter frame;
  frame.u32(static_cast<std::uint32_t>(body.size())).u8(static_cast<std::uint8_t>(type)).text(body);
  return frame.bytes();
}

std::optional<Frame> FrameReader::next() {
  if (broken_ || buffer_.size() < kFrameHead) return std::nullopt;
  BodyReader head(buffer_);
  const std::uint32_t length = head.u32();
  const std::uint8_t type = head.u8();
  const bool known =
      type >= static_cast<std::uint8_t>(FrameType::welcome) && type <= static_cast<std::uint8_t>(FrameType::refused);
  if (length > kMaxBody || !known) {
    broken_ = true;
    buffer_.clear();
    return std::nullopt;
  }
  if (buffer_.size() - kFrameHead < length) return std::nullopt;
  Frame frame{static_cast<FrameType>(type), buffer_.substr(kFrameHead, length)};
  buffer_.erase(0, kFrameHead + length);
  return frame;
}

std::string encode_hello(const Hello& hello) {
  const std::string token = hello.token.substr(0, kMaxToken);
  const std::string name = bounded_text(hello.name, kMaxName);
  BodyWriter bytes;
  bytes.text(kMagic).u32(kVersion).u32(hello.rank).u32(hello.world_size);
  bytes.u16(static_cast<std::uint16_t>(token.size())).u16(static_cast<std::uint16_t>(name.size()));
  return bytes.text(token).text(name).bytes();
}

HelloReader::State HelloReader::feed(std::string_view bytes) {
  buffer_.append(bytes);
  const std::size_t seen = std::min(buffer_.size(), kMagic.size());
  if (std::string_view(buffer_).substr(0, seen) != kMagic.substr(0, seen)) return State::stranger;
  if (buffer_.size() < kHelloHead) return State::incomplete;
  BodyReader head(std::string_view(buffer_).substr(kMagic.size()));
  if (head.u32() != kVersion) return State::other_version;
  hello_.rank = head.u32();
  hello_.world_size = head.u32();
  const std::size_t token = head.u16();
  const std::size_t name = head.u16();
  if (token > kMaxToken || name > kMaxName) return State::stranger;
  if (buffer_.size() < kHelloHead + token + name) return State::incomplete;
  hello_.token = head.text(token);
  hello_.name = head.text(name);
  buffer_.erase(0, kHelloHead + token + name);
  return State::complete;
}

}  // namespace ddp::comm::watch
