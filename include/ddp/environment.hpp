#pragma once
/// environment.hpp: who this process is in its job, read from the launcher's variables.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ddp {

/// Ranks, address and job of one process.
///
/// Sources, the first that is present:
/// - torchrun's variables, also set by ddprun, a Kubernetes PyTorchJob or a shell loop: RANK,
///   WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK. RANK makes the
///   source; WORLD_SIZE alone is accepted beside Open MPI's or Slurm's variables if it agrees.
/// - Open MPI's (OMPI_COMM_WORLD_*). On one host: loopback and a port derived from mpirun's job id.
/// - Slurm's (SLURM_PROCID, ... of a job step; a batch script or salloc's shell is a world of one).
///   The first host of the step, and a port derived from the job and step ids.
/// - A world of one.
///
/// MASTER_ADDR and MASTER_PORT, where set, win over what Open MPI's or Slurm's variables suggest.
/// A variable that is set to an empty or senseless value is an error, not a default.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the processes on this host: chooses the device
  /// False where nobody said it and 0 assumes one process a host, as a Kubernetes PyTorchJob starts
  /// them. Without LOCAL_RANK it is certain for a loopback MASTER_ADDR (local_rank = rank; but
  /// not on rank 0 inside Kubernetes, whose master pod may call itself localhost).
  bool local_rank_known = true;
  int local_world_size = 1;    ///< processes on this host; 0 where nobody said it
  int node_rank = 0;           ///< of this host; where nobody said it, by the rank's place
  std::string master_address;  ///< host of rank 0; empty in a world of one that names none
  std::uint16_t master_port = 0;
  int restart_count = 0;
  std::string job_id;  ///< keeps two jobs on one host apart
  /// The launcher hosts the store already, so that rank 0 connects to it too
  /// (torchrun: TORCHELASTIC_USE_AGENT_STORE).
  bool agent_store = false;
  /// Listening TCP socket that the launcher hands to rank 0 to serve on, whatever agent_store says (DDP_STORE_FD).
  std::optional<int> store_socket;
  std::string source = "none";  ///< "torchrun", "openmpi", "slurm", "none" or "code"

  using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

  /// Reads the process's variables. Errors: ConfigError, one line, names the variable and its value.
  static Environment from_variables();
  /// The same from any source of variables.
  static Environment from_variables(const Lookup& lookup);

  /// All ranks are on one host, as far as the launcher's numbers say.
  bool single_host() const { return local_world_size == world_size; }
};

}  // namespace ddp
