#pragma once
/// variables.hpp: typed reading of environment variables, with errors that name them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ddp/environment.hpp"

namespace ddp::comm {

/// Errors: all readers throw ConfigError for a value that is there and makes no sense.
class Variables {
 public:
  explicit Variables(const Environment::Lookup& lookup) : lookup_(lookup) {}

  bool has(const std::string& name) const { return lookup_(name).has_value(); }
  std::optional<std::string> text(const std::string& name) const { return lookup_(name); }
  /// A number in [least, most].
  std::optional<std::int64_t> number(const std::string& name, std::int64_t least, std::int64_t most) const;
  /// The same as an int, at most INT_MAX.
  std::optional<int> integer(const std::string& name, int least) const;
  /// The same, required: `why` completes "RANK is missing: ...".
  int required(const std::string& name, int least, std::string_view why) const;
  /// 1, true, True or 0, false, False.
  bool flag(const std::string& name) const;
  /// A host name or address: MASTER_ADDR. Brackets around an IPv6 address are taken off.
  std::optional<std::string> host(const std::string& name) const;

  /// Throws ConfigError "NAME=value what; remedy", the value printable and cut to a sane length.
  [[noreturn]] void reject(const std::string& name, std::string_view what, std::string_view remedy = {}) const;

 private:
  const Environment::Lookup& lookup_;
};

[[noreturn]] void reject_environment(std::string_view what, std::string_view remedy = {});

/// A port in [20000, 32000), below the ports that Linux hands out by itself.
std::uint16_t derived_port(std::uint64_t number);
/// The same from any text.
std::uint16_t derived_port(std::string_view text);

}  // namespace ddp::comm
