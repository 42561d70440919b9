#pragma once
/// inspection_wire.hpp: what one who asks a process about its job and that process say to each other, over an
/// abstract Unix socket that is named after the process.
///
/// The question is the line "ddp-inspect 1 any", or with a process's key instead of "any": only about a job of which
/// that one is a rank. The answer is the line "answer BYTES" and so many bytes of text, the line "other job", or
/// "error WHY".

#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "base/process_key.hpp"

namespace ddp::inspection {

using Clock = std::chrono::steady_clock;

inline constexpr std::string_view kSocketPrefix = "ddp-inspect-";  // then the process's key
inline constexpr std::string_view kQuestion = "ddp-inspect 1 ";
inline constexpr std::string_view kAnyJob = "any";
inline constexpr std::string_view kAnswer = "answer ";
inline constexpr std::string_view kOtherJob = "other job";
inline constexpr std::string_view kError = "error ";
inline constexpr std::size_t kLongestLine = 4096;

struct Address {
  sockaddr_un raw{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&raw); }
};
Address address_of(const ProcessKey& process);

/// Close-on-exec, and never blocks. Errors: std::system_error
Descriptor stream_socket();

/// Whom the other end belongs to; none where the kernel does not say.
std::optional<uid_t> user_of(int socket) noexcept;

/// Waits until `socket` has one of `events`; false once `deadline` has passed or `stop` is readable (-1: none).
bool wait_for(int socket, short events, Clock::time_point deadline, int stop = -1) noexcept;

/// How far a transfer has come.
enum class Transfer { done, over, late };

/// One end of a connection, with an end to its patience.
class Conversation {
 public:
  explicit Conversation(int socket, int stop = -1) : socket_(socket), stop_(stop) {}

  Transfer send(std::string_view bytes, Clock::time_point deadline) const noexcept;
  /// `line` without its newline. One that is longer than kLongestLine ends the conversation.
  Transfer receive_line(std::string& line, Clock::time_point deadline);
  Transfer receive(std::string& bytes, std::size_t count, Clock::time_point deadline);

 private:
  Transfer receive_more(Clock::time_point deadline);
  std::string take(std::size_t count);

  int socket_, stop_;
  std::string heard_;  // and not taken yet
};

}  // namespace ddp::inspection
