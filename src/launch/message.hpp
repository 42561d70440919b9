#pragma once
/// message.hpp: what the launcher's processes, and launchers of several nodes, tell one another.

#include <optional>
#include <string>
#include <vector>

namespace ddp::launch {

struct Message {
  std::string kind;
  std::vector<std::string> fields = {};

  bool operator==(const Message&) const = default;
};

/// No message is longer, a rank's last words and its numbers.
constexpr std::size_t kLongestMessage = 1 << 16;

/// As bytes: sizes of four bytes, the least first, before the whole and before each part.
std::string encoded(const Message& message);

/// Takes the first message off `bytes` once it is there as a whole. Errors: std::runtime_error where they are none.
std::optional<Message> take_message(std::string& bytes);

}  // namespace ddp::launch
