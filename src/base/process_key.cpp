#include "base/process_key.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

namespace ddp {
namespace {

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto* const begin = text.data();
  const auto* const end = begin + text.size();
  const auto result = std::from_chars(begin, end, number);
  return result.ec == std::errc() && result.ptr == end;
}

}  // namespace

std::string ProcessKey::text() const { return std::to_string(pid_namespace) + '-' + std::to_string(pid); }

std::optional<ProcessKey> ProcessKey::parsed(std::string_view text) {
  const auto between = text.find('-');
  ProcessKey key;
  if (between == std::string_view::npos || !read_number(text.substr(0, between), key.pid_namespace) ||
      !read_number(text.substr(between + 1), key.pid) || key.pid <= 0) {
    return std::nullopt;
  }
  return key;
}

ProcessKey own_process_key() { return {namespace_of("self", "pid"), ::getpid()}; }

std::uint64_t namespace_of(const std::string& process, const std::string& kind) {
  struct stat file{};
  const auto path = "/proc/" + process + "/ns/" + kind;
  return ::stat(path.c_str(), &file) == 0 ? file.st_ino : 0;
}

}  // namespace ddp
