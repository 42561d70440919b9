// Carries out the commands of docs/multi_node.md as they stand there, on machines of the tests' own, and looks whether
// all ranks train, to the same bits whoever has started them. Definitions: those of recipes_site.hpp; TRAIN and
// TRAIN_ON are programs that train, the second one from its checkpoint; MPIRUN and TORCHRUN are there where they are.
#include <algorithm>
#include <iterator>
#include <regex>

#include "process/recipes_site.hpp"
#include "support/text.hpp"

namespace ddp::test {
namespace {

using testing::contains;
using testing::expect_contains;

constexpr const char* kPlain = "ddprun --nproc-per-node 2 train";
constexpr const char* kDryRun = "ddprun --dry-run --nproc-per-node 2 train";
constexpr const char* kNodes[]{"ddprun --nnodes 2 --node-rank 0 --master-addr node-a --nproc-per-node 2 train",
                               "ddprun --nnodes 2 --node-rank 1 --master-addr node-a --nproc-per-node 2 train"};
constexpr const char* kRestarts = "ddprun --nproc-per-node 2 --max-restarts 3 train";
constexpr const char* kLogs = "ddprun --nproc-per-node 2 --log-dir logs train";
constexpr const char* kLoop =
    "for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 train & done; wait";
constexpr const char* kMpirun = "mpirun -n 2 train";
constexpr const char* kMpirunOnTwo = "mpirun -n 4 --host node-a:2,node-b:2 -x MASTER_ADDR=node-a train";
constexpr const char* kSrun = "srun train";
constexpr const char* kSrunDdprun =
    "srun sh -c 'exec ddprun --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --nproc-per-node 4 --max-restarts 3 \\\n"
    "  --master-addr $(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1) --rdzv-id $SLURM_JOB_ID train'";
constexpr const char* kPod = "train";
constexpr const char* kPodOfRanks = "ddprun train";
constexpr const char* kTorchrun = "torchrun --no-python --nproc-per-node 2 train";
constexpr const char* kTorchrunNodes[]{
    "torchrun --no-python --nnodes 2 --node-rank 0 --master-addr node-a --nproc-per-node 2 train",
    "torchrun --no-python --nnodes 2 --node-rank 1 --master-addr node-a --nproc-per-node 2 train"};

const std::set<std::string> kTried{kPlain,
                                   kDryRun,
                                   kNodes[0],
                                   kNodes[1],
                                   kRestarts,
                                   kLogs,
                                   kLoop,
                                   kMpirun,
                                   kMpirunOnTwo,
                                   kSrun,
                                   kSrunDdprun,
                                   kPod,
                                   kPodOfRanks,
                                   kTorchrun,
                                   kTorchrunNodes[0],
                                   kTorchrunNodes[1]};

TEST(MultiNode, EveryCommandIsTried) {
  const auto documented = documented_commands();
  std::vector<std::string> untried;
  std::ranges::set_difference(documented, kTried, std::back_inserter(untried));
  EXPECT_EQ(untried, std::vector<std::string>{});
  EXPECT_FALSE(documented.empty());
}

const std::string kTrain = std::string("exec ") + TRAIN + " \"$@\"";

/// The number that stands for the bits of all parameters, once each of `ranks` ranks has said the same one.
std::string weights_in(const std::string& text, int ranks, const std::string& source = "torchrun") {
  EXPECT_TRUE(contains(text, "world " + std::to_string(ranks) + " from " + source));
  const std::regex line("weights ([0-9]+)");
  std::multiset<std::string> all;
  for (std::sregex_iterator found(text.begin(), text.end(), line), end; found != end; ++found) all.insert((*found)[1]);
  EXPECT_EQ(all.size(), static_cast<std::size_t>(ranks)) << text;
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 1u) << text;
  return all.empty() ? "none" : *all.begin();
}

/// Where two ranks end, whoever starts them. Gloo adds more than two in another order than shared memory does, so four
/// ranks are compared where they talk over Gloo: on two machines.
std::string weights_of_two(Site& site) { return weights_in(site.run(site.a, kPlain), 2); }
std::string weights_of_four(Site& site) {
  return weights_in(site.run(site.a, kPlain, {{"2", "4"}}, {{"DDP_BACKEND", "gloo"}}), 4);
}

/// One command on each machine, to the end: what both have said.
std::string run_on_both(Site& site, const char* const (&commands)[2], const Replacements& replacements = {},
                        const Variables& of_a = {}, const Variables& of_b = {}) {
  auto& second = site.start(site.b, commands[1], replacements, of_b);
  auto& first = site.start(site.a, commands[0], replacements, of_a);
  return Site::finished(first) + Site::finished(second);
}

TEST(MultiNode, DdprunTrainsOverTwoMachines) {
  Site site(kTrain);
  const auto text = run_on_both(site, kNodes);
  EXPECT_EQ(weights_in(text, 4), weights_of_four(site));
  expect_contains(text, {"hosts: node-a (2 ranks), node-b (2 ranks)", "backend gloo"});
}

TEST(MultiNode, ADryRunShowsTheRanksAndStartsNothing) {
  Site site("echo started");
  const auto text = site.run(site.a, kDryRun);
  expect_contains(text, {"# rank 0 of 2\n", "# rank 1 of 2\n", " RANK=1 ", " MASTER_PORT=ANY_FREE_PORT ", "/train\n"});
  EXPECT_EQ(text.find("started"), std::string::npos) << text;
}

TEST(MultiNode, LogsHaveAFolderForEachAttemptAndRank) {
  Site site("echo out of $RANK; echo err of $RANK >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ]");
  site.run(site.a, kLogs, {{"--log-dir", "--max-restarts 1 --rdzv-id mine --log-dir"}});
  for (const std::string attempt : {"0", "1"}) {
    for (const std::string rank : {"0", "1"}) {
      const auto folder = site.folder() / ("logs/mine/attempt_" + attempt + "/" + rank);
      EXPECT_EQ(testing::contents(folder / "stdout.log"), "out of " + rank + "\n") << folder;
      EXPECT_EQ(testing::contents(folder / "stderr.log"), "err of " + rank + "\n") << folder;
    }
  }
}

TEST(MultiNode, AShellLoopTrainsTheSame) {
  Site site(kTrain);
  EXPECT_EQ(weights_in(site.run(site.a, kLoop), 2), weights_of_two(site));
}

TEST(MultiNode, AProgramThatSpawnsTrainsTheSame) {
  Site site(kTrain);
  EXPECT_EQ(weights_in(site.run(site.a, kPod, {{kPod, "train spawn 1 0"}}), 2), weights_of_two(site));
}

TEST(MultiNode, AProgramThatSpawnsTrainsOverTwoMachines) {
  Site site(kTrain);
  auto& second = site.start(site.b, kPod, {{kPod, "train spawn 2 1"}});
  auto& first = site.start(site.a, kPod, {{kPod, "train spawn 2 0"}});
  const auto text = Site::finished(first) + Site::finished(second);
  EXPECT_EQ(weights_in(text, 4), weights_of_four(site));
}

// Jobs that are restarted.

const std::string kTrainOn = std::string("exec ") + TRAIN_ON + " \"$RUN\" \"$RESTARTS\"";

std::string digest_in(const std::string& text) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(text, found, std::regex("weights ([0-9a-f]{16})"))) << text;
  return found[1];
}

void kill_rank(int rank, Launched& of_its_machine) {
  const auto text = of_its_machine.read_until("rank " + std::to_string(rank) + " is process ", 1);
  std::smatch found;
  const std::regex line("rank " + std::to_string(rank) + " is process ([0-9]+)\n");
  ASSERT_TRUE(std::regex_search(text, found, line)) << text;
  ::kill(std::stoi(found[1]), SIGKILL);
}

/// The run has something to go on from.
void await_checkpoint(const Site& site, const std::string& name) {
  const auto limit = Clock::now() + 20s;
  while (!std::filesystem::exists(site.folder() / name)) {
    ASSERT_LT(Clock::now(), limit);
    ::usleep(5000);
  }
}

TEST(MultiNode, ARestartGoesOnFromTheCheckpoint) {
  Site site(kTrainOn);
  const auto straight = site.run(site.a, kRestarts, {}, {{"RUN", "straight.pt"}, {"RESTARTS", "0"}});
  auto& job = site.start(site.a, kRestarts, {}, {{"RUN", "killed.pt"}, {"RESTARTS", "1"}});
  await_checkpoint(site, "killed.pt");
  kill_rank(1, job);
  const auto killed = Site::finished(job);
  EXPECT_EQ(digest_in(killed), digest_in(straight));
  expect_contains(killed,
                  {"restarting all ranks (restart 1 of at most 3)", "killed.pt loaded, the run goes on with epoch"});
}

TEST(MultiNode, ARankKilledOnTheOtherMachineRestartsAll) {
  Site site(kTrainOn);
  const Replacements once{{"--master-addr", "--max-restarts 1 --master-addr"}};
  const Variables straight{{"RUN", "straight.pt"}, {"RESTARTS", "0"}}, killed{{"RUN", "killed.pt"}, {"RESTARTS", "1"}};
  const auto expected = run_on_both(site, kNodes, once, straight, straight);
  auto& second = site.start(site.b, kNodes[1], once, killed);
  auto& first = site.start(site.a, kNodes[0], once, killed);
  await_checkpoint(site, "killed.pt");
  kill_rank(3, second);
  const auto text = Site::finished(first) + Site::finished(second);
  EXPECT_EQ(digest_in(text), digest_in(expected));
  expect_contains(text,
                  {"rank 3 failed first, ", " on node-b): killed by SIGKILL (signal 9)",
                   "restarting all ranks (restart 1 of at most 1)", "killed.pt loaded, the run goes on with epoch"});
}

// Slurm: a stand-in for srun sets what a step of a batch job on two nodes had from Slurm 22.05.

constexpr const char* kSrunScript = R"sh(
tasks=$((2 * each))
export ENVIRONMENT=BATCH SLURM_CLUSTER_NAME=cluster SLURM_CPUS_ON_NODE=2 SLURM_DISTRIBUTION=block SLURM_JOBID=4711
export SLURM_JOB_CPUS_PER_NODE='2(x2)' SLURM_JOB_ID=4711 SLURM_JOB_NODELIST='n[1-2]' SLURM_JOB_NUM_NODES=2
export SLURM_LAUNCH_NODE_IPADDR=10.8.0.1 SLURM_NNODES=2 SLURM_NODELIST='n[1-2]' SLURM_NPROCS=$tasks
export SLURM_NTASKS=$tasks SLURM_NTASKS_PER_NODE=$each SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST='n[1-2]'
export SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_TASKS_PER_NODE="$each(x2)" SLURM_SUBMIT_HOST=n1
export SLURM_TASKS_PER_NODE="$each(x2)" SLURM_TOPOLOGY_ADDR_PATTERN=node
rank=0
while [ $rank -lt $tasks ]; do
  node=$((rank / each))
  [ $node = 0 ] && machine=$first || machine=$second
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % each)) SLURM_NODEID=$node SLURMD_NODENAME=n$((node + 1)) \
    nsenter --target $machine --net --uts --mount --wd="$PWD" "$@" &
  started="$started $!" rank=$((rank + 1))
done
code=0
for task in $started; do wait $task || code=$?; done
exit $code)sh";

void add_srun(const Site& site, int tasks_of_a_node) {
  site.add_program("srun", "each=" + std::to_string(tasks_of_a_node) + " first=" + std::to_string(site.a.pid()) +
                               " second=" + std::to_string(site.b.pid()) + kSrunScript);
}

TEST(MultiNode, SlurmTrainsWithATaskForEachRank) {
  Site site(kTrain);
  add_srun(site, 2);
  const auto text = site.run(site.a, kSrun);
  EXPECT_EQ(weights_in(text, 4, "slurm"), weights_of_four(site));
  EXPECT_TRUE(contains(text, "hosts: node-a (2 ranks), node-b (2 ranks)"));
}

TEST(MultiNode, SlurmTrainsUnderALauncherOnEachNode) {
  Site site(kTrain);
  add_srun(site, 1);
  site.add_program("scontrol", "[ \"$*\" = 'show hostnames n[1-2]' ] && printf 'n1\\nn2\\n'");
  const auto text = site.run(site.a, kSrunDdprun, {{"--nproc-per-node 4", "--nproc-per-node 2"}});
  EXPECT_EQ(weights_in(text, 4), weights_of_four(site));
}

// Kubernetes: the variables that Kubeflow's operator gives the containers of a PyTorchJob with a master and a worker.

Variables of_pod(int pod, int ranks_of_a_pod) {
  const auto number = std::to_string(pod), ranks = std::to_string(ranks_of_a_pod);
  return {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
          {"PYTHONUNBUFFERED", "1"},
          {"MASTER_ADDR", "train-master-0"},
          {"MASTER_PORT", "23456"},
          {"WORLD_SIZE", std::to_string(2 * ranks_of_a_pod)},
          {"RANK", number},  // the pod's, also where it has several ranks
          {"PET_MASTER_ADDR", "train-master-0"},
          {"PET_MASTER_PORT", "23456"},
          {"PET_NNODES", "2"},
          {"PET_NODE_RANK", number},
          {"PET_NPROC_PER_NODE", ranks}};
}

TEST(MultiNode, KubernetesTrainsWithAPodForEachRank) {
  Site site(kTrain);
  const auto text = run_on_both(site, {kPod, kPod}, {}, of_pod(0, 1), of_pod(1, 1));
  EXPECT_EQ(weights_in(text, 2), weights_of_two(site));
}

TEST(MultiNode, KubernetesTrainsWithPodsOfSeveralRanks) {
  Site site(kTrain);
  const auto text = run_on_both(site, {kPodOfRanks, kPodOfRanks}, {}, of_pod(0, 2), of_pod(1, 2));
  EXPECT_EQ(weights_in(text, 4), weights_of_four(site));
}

#ifdef MPIRUN
/// mpirun refuses root, and more ranks than cores, unless told otherwise; `agent` takes the place of ssh.
Variables of_mpirun(const std::string& agent) {
  return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
          {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
          {"OMPI_MCA_plm_rsh_agent", agent}};
}

TEST(MultiNode, OpenMpiTrainsOnOneMachine) {
  Site site(kTrain);
  EXPECT_EQ(weights_in(site.run(site.a, kMpirun, {}, of_mpirun("false")), 2, "openmpi"), weights_of_two(site));
}

TEST(MultiNode, OpenMpiTrainsOnTwoMachines) {
  Site site(kTrain);
  site.add_program("agent", "[ $1 = node-b ] && shift && exec nsenter --target " + std::to_string(site.b.pid()) +
                                " --net --uts --mount --wd=\"$PWD\" sh -c \"$*\"");
  const auto text = site.run(site.a, kMpirunOnTwo, {}, of_mpirun(site.folder() / "agent"));
  EXPECT_EQ(weights_in(text, 4, "openmpi"), weights_of_four(site));
  EXPECT_TRUE(contains(text, "hosts: node-a (2 ranks), node-b (2 ranks)"));
}
#endif

#ifdef TORCHRUN
TEST(MultiNode, TorchrunTrainsOnOneMachine) {
  Site site(kTrain);
  EXPECT_EQ(weights_in(site.run(site.a, kTorchrun), 2), weights_of_two(site));
}

TEST(MultiNode, TorchrunTrainsOnTwoMachines) {
  Site site(kTrain);
  EXPECT_EQ(weights_in(run_on_both(site, kTorchrunNodes), 4), weights_of_four(site));
}
#endif

}  // namespace
}  // namespace ddp::test
