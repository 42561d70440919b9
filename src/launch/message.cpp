#include "launch/message.hpp"

#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace ddp::launch {
namespace {

constexpr std::size_t kSizeBytes = 4;

void put_size(std::string& bytes, std::size_t size) {
  for (std::size_t i = 0; i < kSizeBytes; ++i) bytes += static_cast<char>(size >> (8 * i) & 0xFF);
}

std::size_t size_at_front(std::string_view bytes) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < kSizeBytes; ++i)
    size |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return size;
}

void put_part(std::string& bytes, const std::string& part) {
  put_size(bytes, part.size());
  bytes += part;
}

std::string take_part(std::string_view& bytes) {
  if (bytes.size() < kSizeBytes || size_at_front(bytes) > bytes.size() - kSizeBytes) {
    throw std::runtime_error("a message that is torn");
  }
  std::string part(bytes.substr(kSizeBytes, size_at_front(bytes)));
  bytes.remove_prefix(kSizeBytes + part.size());
  return part;
}

}  // namespace

std::string encoded(const Message& message) {
  std::string parts;
  put_part(parts, message.kind);
  for (const auto& field : message.fields) put_part(parts, field);
  std::string bytes;
  put_size(bytes, parts.size());
  return bytes + parts;
}

std::optional<Message> take_message(std::string& bytes) {
  if (bytes.size() < kSizeBytes) return std::nullopt;
  const auto size = size_at_front(bytes);
  if (size > kLongestMessage) throw std::runtime_error("a message of " + std::to_string(size) + " bytes");
  if (bytes.size() - kSizeBytes < size) return std::nullopt;
  const std::string whole = bytes.substr(kSizeBytes, size);
  bytes.erase(0, kSizeBytes + size);
  std::string_view parts = whole;
  Message message{take_part(parts)};
  while (!parts.empty()) message.fields.push_back(take_part(parts));
  return message;
}

}  // namespace ddp::launch
