#pragma once
/// core_sets.hpp: which cores each rank of this machine gets.

#include <filesystem>
#include <vector>

namespace ddp::launch {

/// One logical CPU.
struct Cpu {
  int number = 0;
  int node = 0;  ///< NUMA
  int core = 0;  ///< those of one physical core share it
  bool operator==(const Cpu&) const = default;
};

/// The CPUs that this process may use, as the system under `root` (/sys/devices/system) describes them.
std::vector<Cpu> allowed_cpus(const std::filesystem::path& root);

/// The numbers of each rank's CPUs. Physical cores are shared out evenly and whole, ranks over NUMA nodes by their
/// cores, and no rank has cores of two nodes unless there are fewer ranks than nodes. More ranks than cores get threads
/// of cores; more than those share them.
std::vector<std::vector<int>> share_out(std::vector<Cpu> cpus, int ranks);

}  // namespace ddp::launch
