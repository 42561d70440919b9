#include "train/core_share.hpp"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

namespace ddp {
namespace {

std::string host_name() {
  std::array<char, 256> name{};  // POSIX's limit is 255
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// No core where there are more of them than the set can tell.
cpu_set_t own_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
  return cores;
}

}  // namespace

bool has_cores_for_each_rank(ProcessGroup& group, int cores_a_rank) {
  const auto own = own_cores();
  const auto host = host_name();
  const std::string mask(reinterpret_cast<const char*>(&own), sizeof own);
  cpu_set_t all;
  CPU_ZERO(&all);
  int ranks = 0;
  for (const auto& bytes : group.all_gather_bytes(mask + host, {.label = "cores of the ranks"})) {
    if (bytes.substr(sizeof(cpu_set_t)) != host) continue;
    cpu_set_t cores;
    std::memcpy(&cores, bytes.data(), sizeof cores);
    if (CPU_COUNT(&cores) == 0) return true;
    CPU_OR(&all, &all, &cores);
    ++ranks;
  }
  return CPU_COUNT(&all) >= ranks * cores_a_rank;
}

}  // namespace ddp
