#include "start/rank_environment.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <system_error>

namespace ddp::start {
namespace {

/// An empty value removes a variable that an enclosing launcher may have set.
using Variables = std::map<std::string, std::string>;

Variables variables_of(const Job& job, int local_rank) {
  const int rank = job.first_rank + local_rank;
  const bool has_socket = job.store_descriptor >= 0;
  Variables variables{
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"ROLE_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(job.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(job.ranks)},
      {"ROLE_WORLD_SIZE", std::to_string(job.world_size)},
      {"ROLE_NAME", job.role},
      {"GROUP_RANK", std::to_string(job.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(job.nodes)},
      {"MASTER_ADDR", job.master_address},
      {"MASTER_PORT", std::to_string(job.master_port)},
      {"TORCHELASTIC_RUN_ID", job.id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(job.restart)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job.max_restarts)},
      {"TORCHELASTIC_USE_AGENT_STORE", job.is_served ? "True" : "False"},
      {"TORCHELASTIC_ERROR_FILE", ""},
      {"DDP_STORE_FD", rank == 0 && has_socket ? std::to_string(job.store_descriptor) : ""},
  };
  if (!job.check.empty()) variables["DDP_CHECK"] = job.check;
  if (job.threads) variables["OMP_NUM_THREADS"] = std::to_string(*job.threads);
  return variables;
}

bool has(const std::vector<std::string>& entries, const std::string& name) {
  return std::ranges::any_of(entries, [&](const std::string& entry) { return entry.starts_with(name + "="); });
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

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    entries.emplace_back(*entry);  // null: cleared
  return entries;
}

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const Job& job, int local_rank) {
  auto ours = variables_of(job, local_rank);
  // As torchrun: the user's own value stays.
  if (!has(inherited, "TORCH_NCCL_ASYNC_ERROR_HANDLING")) ours["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
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
