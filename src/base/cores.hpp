#pragma once
/// cores.hpp: how many cores this process may really use.

#include <filesystem>
#include <string>

namespace ddp {

/// The smaller of the affinity mask's cores and the cgroups' quota (version 2 or 1), which may be a fraction.
double allowed_cores();

/// The least quota on the way up from this process's cgroups, infinity where there is none.
/// `memberships` is the text of /proc/self/cgroup, `root` where cgroups are mounted.
double cgroup_quota(const std::string& memberships, const std::filesystem::path& root);

/// Threads for each of `ranks` ranks: at least 1.
int threads_per_rank(double cores, int ranks);

}  // namespace ddp
