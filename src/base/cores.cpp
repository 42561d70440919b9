#include "base/cores.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace ddp {
namespace {

namespace fs = std::filesystem;
constexpr double kNoQuota = std::numeric_limits<double>::infinity();

double ratio(double quota, double period) { return quota > 0 && period > 0 ? quota / period : kNoQuota; }

/// Version 2: one file, "max 100000" or "150000 100000".
double read_v2(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? ratio(quota, period) : kNoQuota;
}

/// Version 1: two files, a quota of -1 is none.
double read_v1(const fs::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us"), period_file(folder / "cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period ? ratio(quota, period) : kNoQuota;
}

/// From `member` up to the root; inside a container `member` may not be mounted, its root then is the container's.
template <class Read>
double least_on_the_way_up(const fs::path& root, fs::path member, Read read) {
  double least = kNoQuota;
  for (;; member = member.parent_path()) {
    least = std::min(least, read(root / member.relative_path()));
    if (!member.has_relative_path()) return least;
  }
}

bool has_cpu(const std::string& controllers) { return ("," + controllers + ",").find(",cpu,") != std::string::npos; }

double affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));  // more than 1024 cores
}

}  // namespace

double cgroup_quota(const std::string& memberships, const fs::path& root) {
  double least = kNoQuota;
  std::istringstream lines(memberships);
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/job" or "0::/job"
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    const fs::path member = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, least_on_the_way_up(root, member, read_v2));
    } else if (has_cpu(controllers)) {
      for (const auto& mount : {std::string("cpu"), controllers}) {
        least = std::min(least, least_on_the_way_up(root / mount, member, read_v1));
      }
    }
  }
  return least;
}

double allowed_cores() {
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream memberships;
  memberships << file.rdbuf();
  return std::min(affinity_cores(), cgroup_quota(memberships.str(), "/sys/fs/cgroup"));
}

int threads_per_rank(double cores, int ranks) { return std::max(1, static_cast<int>(cores / ranks)); }

}  // namespace ddp
