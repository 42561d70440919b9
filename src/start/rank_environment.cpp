#include "start/rank_environment.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <system_error>

namespace ddp::start {
namespace {

/// An empty value removes a variable that an enclosing launcher may have set.
using Variables = std::map<std::string, std::string>;

Variables variables_of(const Job& job, int local_rank) {
  const int rank = job.node_rank * job.ranks + local_rank;
  const auto number = std::to_string(rank);
  const auto ranks = std::to_string(job.nodes * job.ranks);
  Variables variables{
      {"RANK", number},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"ROLE_RANK", number},
      {"WORLD_SIZE", ranks},
      {"LOCAL_WORLD_SIZE", std::to_string(job.ranks)},
      {"ROLE_WORLD_SIZE", ranks},
      {"ROLE_NAME", "default"},
      {"GROUP_RANK", std::to_string(job.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(job.nodes)},
      {"MASTER_ADDR", job.master_address},
      {"MASTER_PORT", std::to_string(job.master_port)},
      {"TORCHELASTIC_RUN_ID", job.id},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},  // rank 0 serves the store
      {"TORCHELASTIC_ERROR_FILE", ""},
      {"DDP_STORE_FD", rank == 0 ? std::to_string(job.store_descriptor) : ""},
  };
  if (job.threads) variables["OMP_NUM_THREADS"] = std::to_string(*job.threads);
  return variables;
}

}  // namespace

std::string make_job_id() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits)
    throw std::system_error(errno, std::generic_category(), "getrandom");
  char text[32];
  std::snprintf(text, sizeof text, "ddprun-%016llx", static_cast<unsigned long long>(bits));
  return text;
}

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const Job& job, int local_rank) {
  const auto ours = variables_of(job, local_rank);
  std::vector<std::string> result;
  for (const auto& entry : inherited) {
    if (!ours.contains(entry.substr(0, entry.find('=')))) result.push_back(entry);
  }
  for (const auto& [name, value] : ours) {
    if (!value.empty()) result.push_back(name + "=" + value);
  }
  return result;
}

}  // namespace ddp::start
