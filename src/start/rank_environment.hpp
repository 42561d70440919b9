#pragma once
/// rank_environment.hpp: the variables that make a process a rank, the same as torchrun's.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::start {

struct Job {
  std::string id;  ///< unlike any other job's
  int ranks = 1;   ///< of this node, and of each other
  int nodes = 1;
  int node_rank = 0;
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;
  int store_descriptor = -1;   ///< of rank 0's listening socket
  std::optional<int> threads;  ///< for each rank; unset: the user's OMP_NUM_THREADS stays
};

/// 64 random bits in hex after "ddprun-".
std::string make_job_id();

/// "NAME=value" for all variables of this node's rank `local_rank`; what `inherited` has of other names stays as it is.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const Job& job, int local_rank);

}  // namespace ddp::start
