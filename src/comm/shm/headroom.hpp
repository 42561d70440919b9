#pragma once
/// headroom.hpp: how much memory may still be taken, asked before it is taken: afterwards the kernel
/// answers with a kill.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace ddp::comm::shm {

/// Where the kernel tells; tests put folders of their own here.
struct HeadroomFiles {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
};

/// The tightest of all limits.
struct Headroom {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
  std::string limit = "any limit";  ///< follows "12 MB are left within"
};

/// The smallest of the machine's available memory and of what the memory limits of the process's own
/// cgroup and of all above it (version 1 or 2) leave, file pages that can be dropped counted as free. What
/// cannot be read limits nothing.
Headroom headroom(const HeadroomFiles& files = {});

/// Errors: Unavailable with the needed and the present size where fewer than `bytes` are left.
void require_headroom(std::uint64_t bytes, const HeadroomFiles& files = {});

}  // namespace ddp::comm::shm
