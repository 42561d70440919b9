#include "comm/variables.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "ddp/error.hpp"

namespace ddp::comm {
namespace {

constexpr std::size_t kShownValue = 80;
constexpr std::uint64_t kFirstPort = 20000;
constexpr std::uint64_t kPorts = 12000;

std::string printable(std::string_view value) {
  std::string shown;
  for (char byte : value.substr(0, kShownValue)) shown += byte >= ' ' && byte <= '~' ? byte : '?';
  return value.size() > kShownValue ? shown + "..." : shown;
}

bool is_host_character(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
         std::string_view(".-_:%").find(byte) != std::string_view::npos;
}

}  // namespace

void reject_environment(std::string_view what, std::string_view remedy) {
  throw ConfigError(Origin{}, "environment", what, remedy);
}

void Variables::reject(const std::string& name, std::string_view what, std::string_view remedy) const {
  reject_environment(name + "=" + printable(lookup_(name).value_or("")) + " " + std::string(what), remedy);
}

std::optional<std::int64_t> Variables::number(const std::string& name, std::int64_t least, std::int64_t most) const {
  const auto value = lookup_(name);
  if (!value) return std::nullopt;
  std::int64_t number = 0;
  const char* end = value->data() + value->size();
  const auto parsed = std::from_chars(value->data(), end, number);
  if (value->empty()) reject(name, "is empty", "set it to a number or unset it");
  if (parsed.ec == std::errc::result_out_of_range) reject(name, "is too large a number");
  if (parsed.ec != std::errc() || parsed.ptr != end) reject(name, "is not a whole number");
  if (number < least) reject(name, "must be at least " + std::to_string(least));
  if (number > most) reject(name, "must be at most " + std::to_string(most));
  return number;
}

std::optional<int> Variables::integer(const std::string& name, int least) const {
  const auto value = number(name, least, std::numeric_limits<int>::max());
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

int Variables::required(const std::string& name, int least, std::string_view why) const {
  const auto value = integer(name, least);
  if (!value)
    reject_environment(name + " is missing: " + std::string(why),
                       "set it, or start the program with ddprun or torchrun");
  return *value;
}

bool Variables::flag(const std::string& name) const {
  const auto value = lookup_(name);
  if (!value || *value == "0" || *value == "false" || *value == "False") return false;
  if (*value == "1" || *value == "true" || *value == "True") return true;
  reject(name, "is neither True nor False");
}

std::optional<std::string> Variables::host(const std::string& name) const {
  auto value = lookup_(name);
  if (!value) return std::nullopt;
  const std::string remedy = "give the name or the address of the host of rank 0";
  if (value->empty()) reject(name, "is empty", remedy);
  if (value->size() > 2 && value->front() == '[' && value->back() == ']') value = value->substr(1, value->size() - 2);
  if (std::count(value->begin(), value->end(), ':') == 1)
    reject(name, "is no host name", "the port goes into MASTER_PORT");
  const bool sane = std::all_of(value->begin(), value->end(), is_host_character) && value->size() < 254;
  if (!sane) reject(name, "is no host name", remedy);
  return value;
}

std::uint16_t derived_port(std::uint64_t number) { return static_cast<std::uint16_t>(kFirstPort + number % kPorts); }

std::uint16_t derived_port(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ull;
  return derived_port(hash ^ (hash >> 32));
}

}  // namespace ddp::comm
