#pragma once
/// watch_frame.hpp: the bytes between a WatchLink and its hub.
///
/// A link opens with a hello (fixed head, then a token and a name); from then on both sides send
/// frames: length (4 bytes), type (1 byte), body. All numbers are little-endian. Every length is
/// checked against a limit before anything is stored.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ddp::comm::watch {

inline constexpr std::size_t kMaxText = 64 * 1024;      ///< a failure's text; longer ones are cut with a mark
inline constexpr std::size_t kMaxStatus = 4 * 1024;     ///< a status line
inline constexpr std::size_t kMaxReport = 16 * 1024;    ///< of one rank
inline constexpr std::size_t kMaxBody = kMaxText + 64;  ///< any frame
inline constexpr std::size_t kMaxToken = 512;           ///< the token of a hello
inline constexpr std::size_t kMaxName = 256;            ///< "host:pid" of a hello

enum class FrameType : std::uint8_t {
  welcome = 1,  ///< hub: this rank is in
  reject,       ///< hub: text; the connection closes
  report,       ///< link: kind (1), text
  goodbye,      ///< link: last call (8)
  received,     ///< hub: type (1) of the report or goodbye that it has dealt with
  ask,          ///< link: id (4), limit in ms (4), kind (1), call (8), turn (4)
  question,     ///< hub: kind (1), call (8)
  status,       ///< link: kind (1), call (8), text
  waiting,      ///< link: the calls that it waits in, see watch_mismatch.hpp
  answer,       ///< hub: id (4), rank (4), text
  failure,      ///< hub: rank (4), kind (1), text
  left,         ///< hub: rank (4), last call (8)
  closing,      ///< hub: closes in order
  refused,      ///< hub: id (4); another rank asks
};

/// Appends numbers and text to a body.
class BodyWriter {
 public:
  BodyWriter& u8(std::uint8_t value);
  BodyWriter& u16(std::uint16_t value);
  BodyWriter& u32(std::uint32_t value);
  BodyWriter& u64(std::uint64_t value);
  BodyWriter& text(std::string_view value);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Takes numbers and text from a body; reading past its end yields zeros and ok() == false.
class BodyReader {
 public:
  explicit BodyReader(std::string_view bytes) : bytes_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::string text(std::size_t length);
  std::string rest() { return text(bytes_.size()); }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::uint64_t number(std::size_t width);

  std::string_view bytes_;
  bool ok_ = true;
};

/// `text`, or its first `limit` bytes with a mark that it was cut (never inside a UTF-8 sequence).
std::string bounded_text(std::string_view text, std::size_t limit);
/// The same into memory that is there already; returns the number of bytes. Takes no memory.
std::size_t copy_bounded(std::string_view text, std::span<char> into) noexcept;

struct Frame {
  FrameType type;
  std::string body;
};

std::string encode_frame(FrameType type, std::string_view body = {});

/// Cuts a stream into frames. Holds at most one frame and what was fed last.
class FrameReader {
 public:
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  /// The next whole frame; none when more bytes are needed or the stream is broken.
  std::optional<Frame> next();
  /// The stream is not of this protocol; nothing more can be read from it.
  bool broken() const { return broken_; }

 private:
  std::string buffer_;
  bool broken_ = false;
};

/// How a link introduces itself.
struct Hello {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::string token;
  std::string name;  ///< "host:pid", for messages
};

std::string encode_hello(const Hello& hello);

/// Reads a hello of at most kMaxToken + kMaxName + 32 bytes from a stream.
class HelloReader {
 public:
  enum class State { incomplete, complete, stranger, other_version };

  /// Takes bytes; whatever follows the hello stays in rest().
  State feed(std::string_view bytes);

  const Hello& hello() const { return hello_; }
  const std::string& rest() const { return buffer_; }

 private:
  std::string buffer_;
  Hello hello_;
};

}  // namespace ddp::comm::watch
