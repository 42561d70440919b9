#include "ddp/environment.hpp"

#include <cstdlib>
#include <limits>

#include "comm/slurm_lists.hpp"
#include "comm/variables.hpp"

namespace ddp {

using namespace comm;

namespace {

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

void check_rank(const Variables& variables, const std::string& rank_name, int rank, int world_size) {
  if (rank < world_size) return;
  variables.reject(rank_name, "is none of a world of " + std::to_string(world_size) + " ranks, which count from 0");
}

std::optional<std::uint16_t> port_variable(const Variables& variables) {
  const auto port = variables.number("MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max());
  if (!port) return std::nullopt;
  return static_cast<std::uint16_t>(*port);
}

int node_by_place(const Environment& environment) {
  if (environment.single_host()) return 0;
  return environment.local_world_size > 0 ? environment.rank / environment.local_world_size : environment.rank;
}

// torchrun, ddprun, Kubernetes, shell loops

/// What can be told about this host from the size of the world and the address of rank 0.
void derive_local_ranks(Environment& environment, const Variables& variables) {
  const auto local_rank = variables.integer("LOCAL_RANK", 0);
  const auto local_size = variables.integer("LOCAL_WORLD_SIZE", 1);
  const bool may_be_a_master_pod = environment.rank == 0 && variables.has("KUBERNETES_SERVICE_HOST");
  const bool here = environment.world_size == 1 || (is_loopback(environment.master_address) && !may_be_a_master_pod);
  environment.local_world_size = local_size ? *local_size : (here ? environment.world_size : 0);
  if (environment.local_world_size > environment.world_size) {
    variables.reject("LOCAL_WORLD_SIZE", "is more than WORLD_SIZE=" + std::to_string(environment.world_size));
  }
  if (local_rank) {
    environment.local_rank = *local_rank;
    const int most = environment.local_world_size > 0 ? environment.local_world_size : environment.world_size;
    if (*local_rank < most) return;
    variables.reject("LOCAL_RANK", "must be less than the number of processes on this host, " + std::to_string(most));
  }
  if (local_size && *local_size > 1 && !environment.single_host()) {
    reject_environment("LOCAL_RANK is missing, though LOCAL_WORLD_SIZE=" + std::to_string(*local_size),
                       "set it to this process's number on its host");
  }
  environment.local_rank = environment.single_host() ? environment.rank : 0;
  environment.local_rank_known = environment.local_world_size > 0;
}

Environment from_torchrun(const Variables& variables) {
  Environment environment;
  environment.source = "torchrun";
  environment.world_size = variables.required("WORLD_SIZE", 1, "RANK is set, so this is one of several processes");
  if (environment.world_size > 1 || variables.has("RANK")) {
    environment.rank = variables.required("RANK", 0, "WORLD_SIZE is set, so this is one of several processes");
  }
  check_rank(variables, "RANK", environment.rank, environment.world_size);
  const auto host = variables.host("MASTER_ADDR");
  const auto port = port_variable(variables);
  const std::string rank = "rank " + std::to_string(environment.rank) + " of " + std::to_string(environment.world_size);
  if (environment.world_size > 1 && !host) {
    reject_environment("MASTER_ADDR is missing for " + rank, "set it to the host of rank 0 (127.0.0.1 on one host)");
  }
  if (environment.world_size > 1 && !port) {
    reject_environment("MASTER_PORT is missing for " + rank,
                       "set it to a free port of the host of rank 0, such as 29500");
  }
  environment.master_address = host.value_or("");
  environment.master_port = port.value_or(0);
  derive_local_ranks(environment, variables);
  environment.node_rank = variables.integer("GROUP_RANK", 0).value_or(node_by_place(environment));
  environment.restart_count = variables.integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  environment.job_id = variables.text("TORCHELASTIC_RUN_ID").value_or("");
  environment.agent_store = variables.flag("TORCHELASTIC_USE_AGENT_STORE");
  const auto descriptor = variables.integer("DDP_STORE_FD", 3);  // 0 to 2 are the standard streams
  if (environment.rank == 0) environment.store_socket = descriptor;
  return environment;
}

/// Users export WORLD_SIZE for all, and leave the rank to mpirun or srun.
void check_world_size(const Variables& variables, const std::string& name, int world_size) {
  const auto said = variables.integer("WORLD_SIZE", 1);
  if (!said || *said == world_size) return;
  variables.reject("WORLD_SIZE", "contradicts " + name + "=" + std::to_string(world_size), "unset WORLD_SIZE");
}

// Open MPI: checked with mpirun 4.1. OMPI_COMM_WORLD_NODE_RANK is no node's number but another local rank.

Environment from_open_mpi(const Variables& variables) {
  const std::string why = "Open MPI's mpirun sets it";
  Environment environment;
  environment.source = "openmpi";
  environment.rank = variables.required("OMPI_COMM_WORLD_RANK", 0, why);
  environment.world_size = variables.required("OMPI_COMM_WORLD_SIZE", 1, why);
  check_rank(variables, "OMPI_COMM_WORLD_RANK", environment.rank, environment.world_size);
  check_world_size(variables, "OMPI_COMM_WORLD_SIZE", environment.world_size);
  environment.local_rank = variables.required("OMPI_COMM_WORLD_LOCAL_RANK", 0, why);
  environment.local_world_size = variables.required("OMPI_COMM_WORLD_LOCAL_SIZE", 1, why);
  check_rank(variables, "OMPI_COMM_WORLD_LOCAL_RANK", environment.local_rank, environment.local_world_size);
  if (environment.local_world_size > environment.world_size) {
    variables.reject("OMPI_COMM_WORLD_LOCAL_SIZE", "is more than OMPI_COMM_WORLD_SIZE");
  }
  environment.node_rank = node_by_place(environment);
  auto job = variables.text("PMIX_NAMESPACE");
  if (!job) job = variables.text("OMPI_MCA_ess_base_jobid");
  if (job) environment.job_id = "openmpi-" + *job;

  const auto host = variables.host("MASTER_ADDR");
  const auto port = port_variable(variables);
  if (environment.world_size > 1 && !host && !environment.single_host()) {
    reject_environment(
        "MASTER_ADDR is missing: the ranks are on several hosts, and mpirun does not say which one rank 0 has",
        "start with mpirun -x MASTER_ADDR=HOST_OF_RANK_0");
  }
  if (environment.world_size > 1 && !port && !job) {
    reject_environment("MASTER_PORT is missing: this mpirun gives no job id to derive a port from",
                       "start with mpirun -x MASTER_PORT=29500");
  }
  environment.master_address = host.value_or("127.0.0.1");
  environment.master_port = port ? *port : derived_port(environment.job_id);
  return environment;
}

// Slurm

/// SLURM_PROCID is set in a batch script too, with the job's SLURM_NTASKS, and yet the script runs once.
bool in_slurm_step(const Variables& variables) {
  if (!variables.has("SLURM_PROCID")) return false;
  if (variables.has("SLURM_STEP_NUM_TASKS") || variables.has("SLURM_STEP_NODELIST")) return true;
  return variables.text("ENVIRONMENT") != "BATCH";
}

/// The first of two variables that is there: a step's, or the job's where the step has none.
std::string step_or_job(const Variables& variables, const std::string& step, const std::string& job) {
  return variables.has(step) ? step : job;
}

int slurm_local_size(const Environment& environment, const Variables& variables) {
  const std::string name = step_or_job(variables, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const std::string nodes = step_or_job(variables, "SLURM_STEP_NUM_NODES", "SLURM_NNODES");
  const auto list = variables.text(name);
  if (!list) return variables.integer(nodes, 1) == 1 ? environment.world_size : 0;
  const auto tasks = tasks_on_node(*list, environment.node_rank);
  if (!tasks) variables.reject(name, "says nothing about node " + std::to_string(environment.node_rank));
  // The job's list in a smaller step: of no use.
  return *tasks <= environment.world_size ? *tasks : 0;
}

std::string slurm_first_host(const Variables& variables) {
  std::string name = step_or_job(variables, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
  name = step_or_job(variables, name, "SLURM_NODELIST");
  const std::string remedy = "set MASTER_ADDR to the host of rank 0";
  const auto list = variables.text(name);
  if (!list) reject_environment("SLURM_STEP_NODELIST is missing", remedy);
  const auto host = first_host(*list);
  if (!host) variables.reject(name, "is no list of hosts", remedy);
  return *host;
}

/// 1500 jobs in a row, and eight steps of each, have ports of their own.
std::uint16_t slurm_port(std::uint64_t job, std::uint64_t step) { return derived_port(job * 8 + step % 8); }

Environment from_slurm(const Variables& variables) {
  constexpr std::int64_t largest_id = std::numeric_limits<std::uint32_t>::max();
  const std::string size = step_or_job(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  Environment environment;
  environment.source = "slurm";
  environment.rank = variables.required("SLURM_PROCID", 0, "srun sets it");
  environment.world_size = variables.required(size, 1, "srun sets it");
  check_rank(variables, "SLURM_PROCID", environment.rank, environment.world_size);
  check_world_size(variables, size, environment.world_size);
  environment.node_rank = variables.integer("SLURM_NODEID", 0).value_or(0);
  environment.local_world_size = slurm_local_size(environment, variables);
  const auto local = variables.integer("SLURM_LOCALID", 0);
  environment.local_rank_known = local || environment.single_host() || environment.local_world_size == 1;
  environment.local_rank = local.value_or(environment.single_host() ? environment.rank : 0);
  if (environment.local_rank >= environment.local_world_size) environment.local_world_size = 0;  // another step's list
  environment.restart_count = variables.integer("SLURM_RESTART_COUNT", 0).value_or(0);

  const auto job = variables.number(step_or_job(variables, "SLURM_JOB_ID", "SLURM_JOBID"), 0, largest_id);
  const auto step =
      variables.number(step_or_job(variables, "SLURM_STEP_ID", "SLURM_STEPID"), 0, largest_id).value_or(0);
  if (job) environment.job_id = "slurm-" + std::to_string(*job) + "." + std::to_string(step);
  const auto host = variables.host("MASTER_ADDR");
  const auto port = port_variable(variables);
  if (!port && !job)
    reject_environment("SLURM_JOB_ID is missing", "set MASTER_PORT to a free port of the host of rank 0");
  environment.master_address = host ? *host : environment.single_host() ? "127.0.0.1" : slurm_first_host(variables);
  environment.master_port =
      port ? *port : slurm_port(static_cast<std::uint64_t>(*job), static_cast<std::uint64_t>(step));
  return environment;
}

/// MPICH's and Intel's mpirun do not say enough to go on, and N worlds of one would be worse than an error.
void refuse_other_launchers(const Variables& variables) {
  const auto size = variables.integer("PMI_SIZE", 1);
  if (size.value_or(1) == 1) return;
  variables.reject(
      "PMI_SIZE", "comes from a launcher whose variables are not read (MPICH, Intel MPI)",
      "set RANK=$PMI_RANK, WORLD_SIZE=$PMI_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each process");
}

}  // namespace

Environment Environment::from_variables() {
  return from_variables([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

Environment Environment::from_variables(const Lookup& lookup) {
  const Variables variables(lookup);
  if (variables.has("RANK")) return from_torchrun(variables);
  if (variables.has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(variables);
  if (in_slurm_step(variables)) return from_slurm(variables);
  if (variables.has("WORLD_SIZE")) return from_torchrun(variables);  // which says what is missing
  refuse_other_launchers(variables);
  return {};
}

}  // namespace ddp
