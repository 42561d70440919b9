#pragma once
/// environment.hpp: who this process is in its job, read from the launcher's variables.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ddp {

/// Ranks, address and job of one process.
///
/// Sources, the first that is present: torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, ...),
/// Open MPI's (OMPI_COMM_WORLD_*), Slurm's (SLURM_*), else a world of one.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  std::string master_address;  ///< host of rank 0; empty in a world of one
  std::uint16_t master_port = 0;
  int restart_count = 0;
  std::string job_id;  ///< keeps two jobs on one host apart
  /// The launcher hosts the store already, so that rank 0 connects to it too
  /// (torchrun: TORCHELASTIC_USE_AGENT_STORE).
  bool agent_store = false;
  /// Descriptor of a listening TCP socket that the launcher hands to rank 0 (ddprun: DDP_STORE_FD).
  std::optional<int> store_socket;
  std::string source = "none";  ///< "torchrun", "openmpi", "slurm", "none" or "code"

  using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

  /// Reads the process's variables. Errors: ConfigError names the variable and its value.
  static Environment from_variables();
  /// The same from any source of variables.
  static Environment from_variables(const Lookup& lookup);

  /// All ranks are on one host, as far as the launcher's numbers say.
  bool single_host() const { return local_world_size == world_size; }
};

}  // namespace ddp
