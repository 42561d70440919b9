#pragma once
/// process_key.hpp: a process by a name that holds in every pid namespace of the host.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddp {

struct ProcessKey {
  std::uint64_t pid_namespace = 0;  ///< its inode; 0 where the system does not tell
  pid_t pid = 0;                    ///< the process's number in there

  bool operator==(const ProcessKey&) const = default;

  /// "4026531836-4711"
  std::string text() const;
  /// None where `text` is no such.
  static std::optional<ProcessKey> parsed(std::string_view text);
};

/// This process's.
ProcessKey own_process_key();

/// Inode of a namespace ("pid", "net") of a process ("self", "4711"); 0 where the system does not tell.
std::uint64_t namespace_of(const std::string& process, const std::string& kind);

}  // namespace ddp
