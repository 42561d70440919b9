#pragma once
/// rank_environment.hpp: the variables that make a process a rank, the same as torchrun's.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::start {

/// A job as the ranks of one node see it.
struct Job {
  std::string id = {};  ///< unlike any other job's
  int world_size = 1;
  int first_rank = 0;  ///< of this node
  int ranks = 1;       ///< of this node
  int nodes = 1;
  int node_rank = 0;
  std::string role = "default";
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;
  int restart = 0;  ///< 0: the first attempt
  int max_restarts = 0;
  int store_descriptor = -1;        ///< of the listening socket that rank 0 is handed; -1: none
  bool is_served = false;           ///< the port is taken: whoever has no socket comes to the store as to torchrun's
  std::string check = {};           ///< DDP_CHECK; empty: the user's stays
  std::optional<int> threads = {};  ///< for each rank; unset: the user's OMP_NUM_THREADS stays
};

/// 64 random bits in hex after "ddprun-".
std::string make_job_id();

/// This process's variables, "NAME=value" each.
std::vector<std::string> own_environment();

/// "NAME=value" for all variables of one of this node's ranks; what `inherited` has of other names stays as it is.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const Job& job, int local_rank);

}  // namespace ddp::start
