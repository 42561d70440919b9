#pragma once
/// json_writer.hpp: JSON written straight to a descriptor, also where nothing else may be called: in the handler of a
/// signal that ends the process.

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddp {

/// The caller keeps to JSON's grammar: in an object key() before each value, an end for each beginning, at most 60
/// levels. Takes no memory and no lock, so that all members are safe in a signal's handler.
///
/// Threads: one at a time. Errors: the first that write(2) gives stays; nothing is written after it.
class JsonWriter {
 public:
  explicit JsonWriter(int fd) noexcept : fd_(fd) {}
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  void begin_object() noexcept { begin('{'); }
  void end_object() noexcept { end('}'); }
  void begin_array() noexcept { begin('['); }
  void end_array() noexcept { end(']'); }
  void key(std::string_view name) noexcept;
  /// The next value or key begins a line, for people.
  void new_line() noexcept { wants_line_ = true; }

  /// Bytes that are no UTF-8 become U+FFFD each.
  void value(std::string_view text) noexcept;
  void value(const char* text) noexcept { value(std::string_view(text)); }
  void value(std::same_as<bool> auto is_true) noexcept { literal(is_true ? "true" : "false"); }
  void value(std::signed_integral auto number) noexcept { integer(number); }
  void value(std::unsigned_integral auto number) noexcept
    requires(!std::same_as<decltype(number), bool>)
  {
    unsigned_integer(number);
  }
  /// In seconds, with six decimals.
  void value(std::chrono::nanoseconds time) noexcept;
  void null() noexcept { literal("null"); }

  /// key() and value().
  void field(std::string_view name, auto content) noexcept {
    key(name);
    value(content);
  }
  void null_field(std::string_view name) noexcept {
    key(name);
    null();
  }

  /// Writes what is still held back. 0, or the errno of the first failure.
  int finish() noexcept;

 private:
  void begin(char bracket) noexcept;
  void end(char bracket) noexcept;
  void separate() noexcept;
  void literal(std::string_view text) noexcept;
  void integer(std::int64_t number) noexcept;
  void unsigned_integer(std::uint64_t number) noexcept;
  void digits(std::uint64_t number, int at_least = 1) noexcept;
  void escape(unsigned char character) noexcept;
  void put(char byte) noexcept;
  void put(std::string_view bytes) noexcept;
  void flush() noexcept;

  const int fd_;
  int error_ = 0;
  bool after_key_ = false, wants_line_ = false;
  int depth_ = 0;
  std::uint64_t has_elements_ = 0;  // bit n: of the brackets at depth n
  std::size_t used_ = 0;
  std::array<char, 4096> buffer_{};  // small enough for a stack of the program's own choice
};

}  // namespace ddp
