#include "ddp/environment.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "ddp/error.hpp"
#include "support/text.hpp"

namespace ddp {
namespace {

using testing::contains;
using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return Environment::from_variables([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

/// A shell loop on one host.
const Variables kLoop{{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
const Variables kHosts = with(kLoop, {{"MASTER_ADDR", "node7"}});

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"GROUP_RANK", "1"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_RUN_ID", "run-9"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

/// What `mpirun -n 2` of Open MPI 4.1 sets in rank 1.
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"OMPI_MCA_ess_base_jobid", "2059796481"},
                         {"PMIX_NAMESPACE", "2059796481"}};

/// What `srun -N 3 -n 7` sets in rank 5.
const Variables kSlurm{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_STEP_NUM_TASKS", "7"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_STEP_NODELIST", "node[003-005]"},
                       {"SLURM_JOB_NODELIST", "node[001-009]"},
                       {"SLURM_STEP_TASKS_PER_NODE", "4,2,1"},
                       {"SLURM_JOB_ID", "4711"},
                       {"SLURM_STEP_ID", "0"}};

TEST(Environment, IsAWorldOfOneWithoutALauncher) {
  for (const Variables& variables : {Variables{}, Variables{{"MASTER_ADDR", "node7"}, {"LOCAL_RANK", "3"}}}) {
    const Environment environment = read(variables);
    EXPECT_EQ(environment.rank, 0);
    EXPECT_EQ(environment.world_size, 1);
    EXPECT_EQ(environment.local_world_size, 1);
    EXPECT_TRUE(environment.single_host());
    EXPECT_EQ(environment.source, "none");
  }
}

TEST(Environment, ReadsTorchrunsVariables) {
  const Environment environment = read(kTorchrun);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(environment.node_rank, 1);
  EXPECT_EQ(environment.master_address, "node7");
  EXPECT_EQ(environment.master_port, 29500);
  EXPECT_EQ(environment.restart_count, 2);
  EXPECT_EQ(environment.job_id, "run-9");
  EXPECT_TRUE(environment.agent_store);
  EXPECT_TRUE(environment.local_rank_known);
  EXPECT_FALSE(environment.single_host());
  EXPECT_EQ(environment.source, "torchrun");
}

TEST(Environment, OnALoopbackAddressLocalRanksAreRanks) {
  for (const char* address : {"127.0.0.1", "localhost", "::1", "[::1]", "127.0.1.1"}) {
    const Environment environment = read(with(kLoop, {{"MASTER_ADDR", address}}));
    EXPECT_EQ(environment.local_rank, 2) << address;
    EXPECT_EQ(environment.local_world_size, 4) << address;
    EXPECT_EQ(environment.node_rank, 0) << address;
    EXPECT_TRUE(environment.local_rank_known) << address;
    EXPECT_TRUE(environment.single_host()) << address;
    EXPECT_FALSE(environment.agent_store) << address;
  }
}

TEST(Environment, OnSeveralHostsAMissingLocalRankIsNotMadeUp) {
  const Environment environment = read(kHosts);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 0);
  EXPECT_FALSE(environment.local_rank_known);
  EXPECT_FALSE(environment.single_host());
}

TEST(Environment, AGivenLocalRankIsTakenWithoutTheirNumber) {
  const Environment environment = read(with(kHosts, {{"LOCAL_RANK", "1"}}));
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_TRUE(environment.local_rank_known);
  EXPECT_FALSE(environment.single_host());
}

TEST(Environment, OneProcessAHostNeedsNoLocalRank) {
  const Environment environment = read(with(kHosts, {{"LOCAL_WORLD_SIZE", "1"}}));
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.node_rank, 2);
  EXPECT_TRUE(environment.local_rank_known);
}

TEST(Environment, AMasterPodThatCallsItselfLocalhostIsNotTheWholeWorld) {
  const Variables pod =
      with(kLoop, {{"RANK", "0"}, {"MASTER_ADDR", "localhost"}, {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}});
  EXPECT_FALSE(read(pod).single_host());
  EXPECT_EQ(read(pod).local_rank, 0);
  EXPECT_TRUE(read(with(pod, {{"LOCAL_WORLD_SIZE", "4"}})).single_host());
  EXPECT_TRUE(read(without(pod, "KUBERNETES_SERVICE_HOST")).single_host());
}

TEST(Environment, OnlyRankZeroAdoptsTheLaunchersSocket) {
  EXPECT_EQ(read(with(kLoop, {{"RANK", "0"}, {"DDP_STORE_FD", "7"}})).store_socket, 7);
  EXPECT_EQ(read(with(kLoop, {{"DDP_STORE_FD", "7"}})).store_socket, std::nullopt);
  EXPECT_EQ(read(kLoop).store_socket, std::nullopt);
}

TEST(Environment, AnAgentsStoreAndASocketMayBothBeThere) {
  const auto rank0 = read(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"DDP_STORE_FD", "7"}}));
  EXPECT_TRUE(rank0.agent_store);
  EXPECT_EQ(rank0.store_socket, 7);
}

TEST(Environment, AWorldOfOneNeedsNoAddress) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);
  EXPECT_EQ(read({{"WORLD_SIZE", "1"}}).rank, 0);
}

TEST(Environment, ReadsOpenMpisVariables) {
  const Environment environment = read(kOpenMpi);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.node_rank, 0);  // OMPI_COMM_WORLD_NODE_RANK is another local rank
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_EQ(environment.job_id, "openmpi-2059796481");
  EXPECT_EQ(environment.source, "openmpi");
}

TEST(Environment, EveryRankOfAnMpiJobDerivesTheSamePort) {
  const auto port = read(kOpenMpi).master_port;
  EXPECT_EQ(port,
            read(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})).master_port);
  EXPECT_EQ(port, read(without(kOpenMpi, "PMIX_NAMESPACE")).master_port);
  std::set<int> ports;
  for (int job = 0; job < 200; ++job) {
    ports.insert(read(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-vm-" + std::to_string(job) + "@1"}})).master_port);
  }
  EXPECT_GT(ports.size(), 190u) << "jobs on one host meet on the same port";
  EXPECT_GE(*ports.begin(), 1024);
  EXPECT_LT(*ports.rbegin(), 32768) << "the kernel hands these out to others";
}

TEST(Environment, OpenMpiOnSeveralHostsAsksForMasterAddr) {
  const Variables hosts = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_TRUE(contains(error_of(hosts), "MASTER_ADDR is missing"));
  EXPECT_TRUE(contains(error_of(hosts), "mpirun -x MASTER_ADDR="));
  const Environment environment = read(with(hosts, {{"MASTER_ADDR", "node7"}}));
  EXPECT_EQ(environment.master_address, "node7");
  EXPECT_GE(environment.master_port, 1024);
}

TEST(Environment, ReadsSlurmsVariables) {
  const Environment environment = read(kSlurm);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 7);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.node_rank, 1);
  EXPECT_EQ(environment.master_address, "node003");
  EXPECT_EQ(environment.job_id, "slurm-4711.0");
  EXPECT_EQ(environment.source, "slurm");
}

TEST(Environment, ReadsSlurmsOlderVariables) {
  const Environment environment = read({{"SLURM_PROCID", "3"},
                                        {"SLURM_NTASKS", "4"},
                                        {"SLURM_LOCALID", "1"},
                                        {"SLURM_NODEID", "1"},
                                        {"SLURM_TASKS_PER_NODE", "2(x2)"},
                                        {"SLURM_NODELIST", "a-b[9,3-5]"},
                                        {"SLURM_JOBID", "12"}});
  EXPECT_EQ(environment.master_address, "a-b9");
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_FALSE(environment.single_host());
}

TEST(Environment, ASlurmStepOnOneHostUsesTheLoopback) {
  const Environment environment = read({{"SLURM_PROCID", "1"},
                                        {"SLURM_NTASKS", "2"},
                                        {"SLURM_LOCALID", "1"},
                                        {"SLURM_TASKS_PER_NODE", "2"},
                                        {"SLURM_JOB_NODELIST", "unresolvable"},
                                        {"SLURM_JOB_ID", "12"}});
  EXPECT_TRUE(environment.single_host());
  EXPECT_EQ(environment.master_address, "127.0.0.1");
}

TEST(Environment, SlurmJobsAndStepsInARowHaveDifferentPorts) {
  std::set<int> ports;
  for (int job = 1000000; job < 1000100; ++job) {
    for (int step = 0; step < 8; ++step) {
      ports.insert(read(with(kSlurm, {{"SLURM_JOB_ID", std::to_string(job)}, {"SLURM_STEP_ID", std::to_string(step)}}))
                       .master_port);
    }
  }
  EXPECT_EQ(ports.size(), 800u);
  EXPECT_GE(*ports.begin(), 1024);
  EXPECT_LT(*ports.rbegin(), 32768);
}

TEST(Environment, ASlurmShellOrBatchScriptIsAWorldOfOne) {
  const Variables salloc{{"SLURM_JOB_ID", "4711"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "node[1-2]"}};
  EXPECT_EQ(read(salloc).world_size, 1);
  const Variables batch = with(salloc, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"ENVIRONMENT", "BATCH"}});
  EXPECT_EQ(read(batch).world_size, 1);
  EXPECT_EQ(read(batch).source, "none");
  // salloc's shell as a step of its own, which keeps the job's SLURM_NTASKS
  const Variables interactive = with(salloc, {{"SLURM_PROCID", "0"},
                                              {"SLURM_LOCALID", "0"},
                                              {"SLURM_STEP_NUM_TASKS", "1"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                              {"SLURM_STEP_ID", "4294967290"}});
  EXPECT_EQ(read(interactive).world_size, 1);
  // srun inside a batch script
  EXPECT_EQ(read(with(kSlurm, {{"ENVIRONMENT", "BATCH"}})).world_size, 7);
}

TEST(Environment, MasterAddrAndPortWinOverTheLaunchersGuesses) {
  for (const Variables& launcher : {kOpenMpi, kSlurm}) {
    const Environment environment = read(with(launcher, {{"MASTER_ADDR", "10.1.2.3"}, {"MASTER_PORT", "7777"}}));
    EXPECT_EQ(environment.master_address, "10.1.2.3");
    EXPECT_EQ(environment.master_port, 7777);
  }
}

TEST(Environment, TorchrunsVariablesWinOverMpirunsAndThoseOverSlurms) {
  EXPECT_EQ(read(with(with(kSlurm, kOpenMpi), kTorchrun)).source, "torchrun");
  EXPECT_EQ(read(with(kSlurm, kOpenMpi)).source, "openmpi");
}

TEST(Environment, AnExportedWorldSizeMustAgreeWithTheLaunchers) {
  EXPECT_EQ(read(with(kSlurm, {{"WORLD_SIZE", "7"}})).rank, 5);
  EXPECT_TRUE(
      contains(error_of(with(kSlurm, {{"WORLD_SIZE", "8"}})), "WORLD_SIZE=8 contradicts SLURM_STEP_NUM_TASKS=7"));
  EXPECT_TRUE(contains(error_of(with(kOpenMpi, {{"WORLD_SIZE", "8"}})), "WORLD_SIZE=8"));
}

TEST(Environment, RefusesALauncherThatItCannotRead) {
  EXPECT_TRUE(contains(error_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}), "PMI_SIZE=4"));
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).world_size, 1);
}

struct Wrong {
  Variables variables;
  std::string text;
};

TEST(Environment, NamesTheVariableAndTheValueThatIsWrong) {
  const std::vector<Wrong> wrongs{
      {{{"WORLD_SIZE", "2"}}, "RANK is missing"},
      {{{"RANK", "0"}}, "WORLD_SIZE is missing"},
      {without(kLoop, "MASTER_ADDR"), "MASTER_ADDR is missing for rank 2 of 4"},
      {without(kLoop, "MASTER_PORT"), "MASTER_PORT is missing for rank 2 of 4"},
      {with(kLoop, {{"RANK", "4"}}), "RANK=4 is none of a world of 4"},
      {with(kLoop, {{"RANK", "-1"}}), "RANK=-1 must be at least 0"},
      {with(kLoop, {{"RANK", ""}}), "RANK= is empty"},
      {with(kLoop, {{"RANK", "1x"}}), "RANK=1x is not a whole number"},
      {with(kLoop, {{"RANK", " 1"}}), "RANK= 1 is not a whole number"},
      {with(kLoop, {{"RANK", "+1"}}), "RANK=+1 is not"},
      {with(kLoop, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0 must be at least 1"},
      {with(kLoop, {{"WORLD_SIZE", "99999999999999999999"}}), "WORLD_SIZE=99999999999999999999 is too large"},
      {with(kLoop, {{"WORLD_SIZE", "2147483648"}}), "WORLD_SIZE=2147483648 must be at most"},
      {with(kLoop, {{"MASTER_PORT", "abc"}}), "MASTER_PORT=abc is not a whole number"},
      {with(kLoop, {{"MASTER_PORT", "0"}}), "MASTER_PORT=0"},
      {with(kLoop, {{"MASTER_PORT", "65536"}}), "MASTER_PORT=65536"},
      {with(kLoop, {{"MASTER_ADDR", ""}}), "MASTER_ADDR= is empty"},
      {with(kLoop, {{"MASTER_ADDR", "node7:29500"}}), "the port goes into MASTER_PORT"},
      {with(kLoop, {{"MASTER_ADDR", "tcp://node7"}}), "MASTER_ADDR=tcp://node7"},
      {with(kLoop, {{"MASTER_ADDR", "a b\n"}}), "MASTER_ADDR=a b? is no host name"},
      {with(kLoop, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4"},
      {with(kLoop, {{"LOCAL_RANK", "no"}}), "LOCAL_RANK=no"},
      {with(kLoop, {{"LOCAL_WORLD_SIZE", "5"}}), "LOCAL_WORLD_SIZE=5 is more than WORLD_SIZE=4"},
      {with(kHosts, {{"LOCAL_WORLD_SIZE", "2"}}), "LOCAL_RANK is missing, though LOCAL_WORLD_SIZE=2"},
      {with(kTorchrun, {{"GROUP_RANK", "x"}}), "GROUP_RANK=x"},
      {with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "maybe"}}), "TORCHELASTIC_USE_AGENT_STORE=maybe"},
      {with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "-1"}}), "TORCHELASTIC_RESTART_COUNT=-1"},
      {with(kTorchrun, {{"DDP_STORE_FD", "1"}}), "DDP_STORE_FD=1"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}), "OMPI_COMM_WORLD_RANK=2"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}), "OMPI_COMM_WORLD_LOCAL_RANK=2"},
      {without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is missing"},
      {without(without(kOpenMpi, "PMIX_NAMESPACE"), "OMPI_MCA_ess_base_jobid"), "MASTER_PORT is missing"},
      {with(kSlurm, {{"SLURM_PROCID", "7"}}), "SLURM_PROCID=7"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "node[003"}}), "SLURM_STEP_NODELIST=node[003 is no list of hosts"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"}}), "SLURM_STEP_TASKS_PER_NODE=4 says nothing about node 1"},
      {without(kSlurm, "SLURM_JOB_ID"), "SLURM_JOB_ID is missing"},
  };
  for (const auto& [variables, text] : wrongs) {
    const std::string error = error_of(variables);
    EXPECT_TRUE(contains(error, text));
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(Environment, SenselessValuesAreErrorsAndNeverMore) {
  const std::vector<std::string> values{"",
                                        "0",
                                        "1",
                                        "2",
                                        "3",
                                        "-1",
                                        "4294967295",
                                        "18446744073709551616",
                                        "x",
                                        "1x",
                                        "2(x3)",
                                        "node[1-3]",
                                        "node[",
                                        "[",
                                        "]",
                                        "2(x",
                                        ",",
                                        "::",
                                        "True",
                                        "localhost",
                                        "127.0.0.1",
                                        "\n",
                                        "29500",
                                        "99999(x99999)",
                                        "[3-1]",
                                        std::string(5000, '9'),
                                        std::string("\0\xff", 2),
                                        "a[1]b[2]"};
  std::vector<Variables> starts{kLoop, kTorchrun, kOpenMpi, kSlurm, {}};
  std::mt19937 random(31415);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Variables variables = starts[random() % starts.size()];
    for (int change = 0; change < 3; ++change) {
      const Variables& names = starts[random() % 4];
      const auto name = std::next(names.begin(), static_cast<std::ptrdiff_t>(random() % names.size()))->first;
      if (random() % 4 == 0) {
        variables.erase(name);
      } else {
        variables[name] = values[random() % values.size()];
      }
    }
    try {
      const Environment environment = read(variables);
      ++accepted;
      EXPECT_GE(environment.rank, 0);
      EXPECT_LT(environment.rank, environment.world_size);
      EXPECT_LE(environment.local_world_size, environment.world_size);
      EXPECT_GE(environment.local_rank, 0);
      EXPECT_TRUE(environment.local_world_size == 0 || environment.local_rank < environment.local_world_size);
      if (environment.world_size > 1) {
        EXPECT_FALSE(environment.master_address.empty());
        EXPECT_NE(environment.master_port, 0);
      }
    } catch (const ConfigError&) {  // the other allowed end
    }
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace ddp
