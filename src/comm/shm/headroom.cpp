#include "comm/shm/headroom.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "comm/shm/unavailable.hpp"

namespace ddp::comm::shm {
namespace {

using Path = std::filesystem::path;

// Kept back from a cgroup's limit: page tables are charged to it too, and every core's charges come in batches.
constexpr std::uint64_t kKeptBack = 8 << 20;

/// What the files of a version of the memory controller are called.
struct Names {
  const char* limit;
  const char* usage;
  const char* inactive;  // in memory.stat, with the cgroups below
  const char* active;
};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
constexpr Names kVersion2{"memory.max", "memory.current", "inactive_file", "active_file"};

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

/// None where there is no such file, or it says "max".
std::optional<std::uint64_t> number_in(const Path& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return number(word);
}

/// The number behind `key` in a file of lines "key number"; 0 where it is not there.
std::uint64_t entry(const Path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const auto digits = line.find_first_not_of(" \t", key.size());
    if (digits == std::string::npos || digits == key.size()) continue;  // a longer key that begins like it
    return number(std::string_view(line).substr(digits)).value_or(0);
  }
  return 0;
}

void tighten(Headroom& result, std::uint64_t bytes, std::string limit) {
  if (bytes < result.bytes) result = {.bytes = bytes, .limit = std::move(limit)};
}

void look_into(Headroom& result, const Path& folder, const Path& group, const Names& names) {
  const auto limit = number_in(folder / names.limit);
  const auto usage = number_in(folder / names.usage);
  if (!limit || !usage) return;
  const Path statistics = folder / "memory.stat";
  const auto droppable = entry(statistics, names.inactive) + entry(statistics, names.active);
  const auto used = *usage - std::min(*usage, droppable) + kKeptBack;
  tighten(result, *limit - std::min(*limit, used),
          "the memory limit of cgroup " + group.string() + " (" + names.limit + ")");
}

/// The cgroup `group` of the hierarchy mounted at `mount`, and all above it. In a container the name may be
/// the host's, which is not to be found here: then the mount's root is the container's own cgroup.
void look_upwards(Headroom& result, const Path& mount, const Path& group, const Names& names) {
  const bool outside = std::find(group.begin(), group.end(), "..") != group.end();
  for (Path at = outside ? Path("/") : group;; at = at.parent_path()) {
    look_into(result, mount / at.relative_path(), at, names);
    if (at == at.parent_path()) return;
  }
}

bool lists_memory(std::string_view controllers) {
  for (std::size_t at = 0; at <= controllers.size();) {
    const auto end = std::min(controllers.find(',', at), controllers.size());
    if (controllers.substr(at, end - at) == "memory") return true;
    at = end + 1;
  }
  return false;
}

/// A line of /proc/self/cgroup: "number:controllers:path", "0::path" for version 2.
void look_at_line(Headroom& result, const Path& root, std::string_view line) {
  const auto first = line.find(':');
  const auto second = line.find(':', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return;
  const auto controllers = line.substr(first + 1, second - first - 1);
  const Path group(line.substr(second + 1));
  if (controllers.empty()) {
    look_upwards(result, root, group, kVersion2);
    look_upwards(result, root / "unified", group, kVersion2);
  } else if (lists_memory(controllers)) {
    look_upwards(result, root / "memory", group, kVersion1);
  }
}

}  // namespace

Headroom headroom(const HeadroomFiles& files) {
  Headroom result;
  const auto available = entry(files.proc / "meminfo", "MemAvailable:");  // kB; 0 where there is no such line
  if (available != 0) tighten(result, available * 1024, "the machine's memory (MemAvailable)");
  std::ifstream groups(files.proc / "self" / "cgroup");
  for (std::string line; std::getline(groups, line);) look_at_line(result, files.cgroup, line);
  return result;
}

void require_headroom(std::uint64_t bytes, const HeadroomFiles& files) {
  const Headroom left = headroom(files);
  if (bytes <= left.bytes) return;
  throw Unavailable(size_text(bytes) + " are needed, " + size_text(left.bytes) + " are left within " + left.limit);
}

}  // namespace ddp::comm::shm
