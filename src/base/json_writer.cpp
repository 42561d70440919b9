#include "base/json_writer.hpp"

#include <unistd.h>

#include <cerrno>

namespace ddp {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_continuation(unsigned char byte) { return (byte & 0xC0U) == 0x80; }

/// Bytes of the character at the beginning of `text`; 0: no UTF-8 (cut, too long a form, a surrogate, past U+10FFFF).
std::size_t length_of_character(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto first = at(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : 4;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(at(i))) return 0;
  }
  const auto second = at(1);
  const bool is_right = (first != 0xE0 || second >= 0xA0) && (first != 0xED || second < 0xA0) &&
                        (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second < 0x90);
  return is_right ? length : 0;
}

}  // namespace

void JsonWriter::key(std::string_view name) noexcept {
  value(name);
  put(':');
  after_key_ = true;
}

void JsonWriter::value(std::string_view text) noexcept {
  separate();
  put('"');
  while (!text.empty()) {
    const auto length = length_of_character(text);
    if (length == 0) {
      put(kReplacement);
    } else if (length == 1) {
      escape(static_cast<unsigned char>(text[0]));
    } else {
      put(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  put('"');
}

void JsonWriter::value(std::chrono::nanoseconds time) noexcept {
  constexpr std::int64_t kMicro = 1'000'000;
  const auto micro = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  const auto size = micro < 0 ? -static_cast<std::uint64_t>(micro) : static_cast<std::uint64_t>(micro);
  separate();
  if (micro < 0) put('-');
  digits(size / kMicro);
  put('.');
  digits(size % kMicro, 6);
}

int JsonWriter::finish() noexcept {
  flush();
  return error_;
}

void JsonWriter::begin(char bracket) noexcept {
  separate();
  put(bracket);
  ++depth_;
  has_elements_ &= ~(1ULL << static_cast<unsigned>(depth_));
}

void JsonWriter::end(char bracket) noexcept {
  wants_line_ = false;
  --depth_;
  put(bracket);
}

void JsonWriter::separate() noexcept {
  const auto bit = 1ULL << static_cast<unsigned>(depth_);
  if (!after_key_ && (has_elements_ & bit) != 0) put(',');
  if (!after_key_ && wants_line_) put('\n');
  if (!after_key_) wants_line_ = false;
  has_elements_ |= bit;
  after_key_ = false;
}

void JsonWriter::literal(std::string_view text) noexcept {
  separate();
  put(text);
}

void JsonWriter::integer(std::int64_t number) noexcept {
  separate();
  if (number < 0) put('-');
  digits(number < 0 ? -static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number));
}

void JsonWriter::unsigned_integer(std::uint64_t number) noexcept {
  separate();
  digits(number);
}

void JsonWriter::digits(std::uint64_t number, int at_least) noexcept {
  std::array<char, 20> text;
  std::size_t begin = text.size();
  for (; number > 0 || at_least > 0; number /= 10, --at_least) text[--begin] = static_cast<char>('0' + number % 10);
  put(std::string_view(text.data() + begin, text.size() - begin));
}

void JsonWriter::escape(unsigned char character) noexcept {
  if (character == '"' || character == '\\') {
    put('\\');
    put(static_cast<char>(character));
  } else if (character == '\n') {
    put("\\n");
  } else if (character < 0x20) {
    put("\\u00");
    put("0123456789abcdef"[character >> 4U]);
    put("0123456789abcdef"[character & 15U]);
  } else {
    put(static_cast<char>(character));
  }
}

void JsonWriter::put(char byte) noexcept {
  if (used_ == buffer_.size()) flush();
  buffer_[used_++] = byte;
}

void JsonWriter::put(std::string_view bytes) noexcept {
  for (const char byte : bytes) put(byte);
}

void JsonWriter::flush() noexcept {
  for (std::size_t written = 0; written < used_ && error_ == 0;) {
    const auto size = ::write(fd_, buffer_.data() + written, used_ - written);
    if (size >= 0) {
      written += static_cast<std::size_t>(size);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  used_ = 0;
}

}  // namespace ddp
