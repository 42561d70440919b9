#include "train/checkpoint/zip_directory.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "train/checkpoint/checksum.hpp"

namespace ddp::checkpoint {
namespace {

// Names, offsets and the fixed sizes of a zip archive's structures: PKWARE's APPNOTE.TXT, 4.3.
constexpr std::uint32_t kLocalHeader = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr std::uint64_t kLocalHeaderBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr std::uint64_t kLongestComment = 0xffff;
constexpr std::uint64_t kSee64 = 0xffffffff;  // the value stands in the 64-bit field

[[noreturn]] void fail(const char* what) { throw std::runtime_error(what); }

template <class Integer>
Integer number(std::string_view bytes, std::uint64_t offset) {
  Integer value = 0;
  if (offset > bytes.size() || bytes.size() - offset < sizeof value) fail("its end is missing");
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string_view part(std::string_view bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) fail("a part of it lies beyond its end");
  return bytes.substr(offset, size);
}

std::optional<std::uint64_t> find_end(std::string_view bytes) {
  if (bytes.size() < kEndBytes) return std::nullopt;
  const auto last = bytes.size() - kEndBytes;
  for (auto at = last + 1; at-- > last - std::min(last, kLongestComment);)
    if (number<std::uint32_t>(bytes, at) == kEnd && number<std::uint16_t>(bytes, at + 20) == last - at) return at;
  return std::nullopt;
}

// The fields of an entry that are too large for 32 bits, in their order.
class Extra64 {
 public:
  explicit Extra64(std::string_view extra) {
    for (std::uint64_t at = 0; at + 4 <= extra.size();) {
      const auto size = number<std::uint16_t>(extra, at + 2);
      if (number<std::uint16_t>(extra, at) == 1) fields_ = part(extra, at + 4, size);
      at += 4 + std::uint64_t{size};
    }
  }
  std::uint64_t value(std::uint32_t short_value) {
    if (short_value != kSee64) return short_value;
    const auto value = number<std::uint64_t>(fields_, 0);
    fields_.remove_prefix(sizeof value);
    return value;
  }

 private:
  std::string_view fields_;
};

}  // namespace

ZipDirectory::ZipDirectory(std::string_view bytes, bool verifies) : bytes_(bytes), verifies_(verifies) {
  const auto extent = find_entries();
  part(bytes_, extent.offset, extent.size);
  std::uint64_t all = 0;
  for (auto at = extent.offset; at < extent.offset + extent.size;) at = read_entry(at);
  for (const auto& [name, entry] : entries_) {
    if (!entry.is_compressed && entry.size > bytes_.size() - all) fail("its records lie over each other");
    if (!entry.is_compressed) all += entry.size;
  }
}

ZipDirectory::Extent ZipDirectory::find_entries() const {
  const auto end = find_end(bytes_);
  if (!end) fail("it is no zip archive, or its end is missing");
  const auto size = number<std::uint32_t>(bytes_, *end + 12), offset = number<std::uint32_t>(bytes_, *end + 16);
  if (*end < kLocatorBytes || number<std::uint32_t>(bytes_, *end - kLocatorBytes) != kEnd64Locator)
    return {offset, size};
  const auto end64 = number<std::uint64_t>(bytes_, *end - kLocatorBytes + 8);
  part(bytes_, end64, kEnd64Bytes);
  if (number<std::uint32_t>(bytes_, end64) != kEnd64) fail("its table of contents is damaged");
  return {number<std::uint64_t>(bytes_, end64 + 48), number<std::uint64_t>(bytes_, end64 + 40)};
}

// Returns where the next one begins.
std::uint64_t ZipDirectory::read_entry(std::uint64_t offset) {
  const auto fixed = part(bytes_, offset, kEntryBytes);
  if (number<std::uint32_t>(fixed, 0) != kEntry) fail("its table of contents is damaged");
  if (number<std::uint16_t>(fixed, 8) & 1U) fail("it is encrypted");
  const auto name_bytes = number<std::uint16_t>(fixed, 28), extra_bytes = number<std::uint16_t>(fixed, 30);
  auto name = std::string(part(bytes_, offset + kEntryBytes, name_bytes));
  Extra64 extra(part(bytes_, offset + kEntryBytes + name_bytes, extra_bytes));
  Entry entry{.crc = number<std::uint32_t>(fixed, 16), .is_compressed = number<std::uint16_t>(fixed, 10) != 0};
  entry.size = extra.value(number<std::uint32_t>(fixed, 24));
  const auto stored = extra.value(number<std::uint32_t>(fixed, 20));
  if (!entry.is_compressed && stored != entry.size) fail("its table of contents is damaged");
  entry.header = extra.value(number<std::uint32_t>(fixed, 42));
  name.erase(0, name.find('/') + 1);
  if (!entries_.emplace(std::move(name), entry).second) fail("its table of contents has a record twice");
  return offset + kEntryBytes + name_bytes + extra_bytes + number<std::uint16_t>(fixed, 32);
}

std::string_view ZipDirectory::record(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw std::runtime_error("it has no record \"" + name + '"');
  const auto& entry = found->second;
  if (entry.is_compressed)
    throw std::runtime_error("its record \"" + name + "\" is compressed, as torch.save() never does");
  const auto header = part(bytes_, entry.header, kLocalHeaderBytes);
  if (number<std::uint32_t>(header, 0) != kLocalHeader) fail("the head of a record is damaged");
  const auto names = std::uint64_t{number<std::uint16_t>(header, 26)} + number<std::uint16_t>(header, 28);
  const auto content = part(bytes_, entry.header + kLocalHeaderBytes + names, entry.size);
  if (verifies_ && entry.crc != 0 && crc32(content) != entry.crc)
    throw std::runtime_error("it is damaged: the checksum of its record \"" + name + "\" is wrong");
  return content;
}

}  // namespace ddp::checkpoint
