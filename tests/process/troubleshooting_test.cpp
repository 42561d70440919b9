// Carries out the commands of docs/troubleshooting.md, as they stand there, on jobs in trouble, and looks whether what
// the document says can be read there is there. Definitions: TROUBLESHOOTING is the document, DDPRUN and TRAIN are the
// programs, and PS is there where ps is.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "ddp/process_group.hpp"
#include "process/launched.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using test::Clock;
using test::Launched;

constexpr const char* kPlain = "ddprun --nproc-per-node 3 train";
constexpr const char* kLogInit = "DDP_LOG_SUBSYS=init ddprun --nproc-per-node 3 train";
constexpr const char* kByHand =
    "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 DDP_TIMEOUT=60 train";
constexpr const char* kInspect = "ddprun --inspect 4711";
constexpr const char* kLogColl = "DDP_LOG_SUBSYS=coll ddprun --nproc-per-node 3 train 2>&1 | grep coll:";
constexpr const char* kWarn = "DDP_WARN_AFTER=20 ddprun --nproc-per-node 3 train";
constexpr const char* kTimeout = "DDP_TIMEOUT=40 ddprun --nproc-per-node 3 train";
constexpr const char* kSourceLine = "addr2line -C -f -e train 0x2134d";
constexpr const char* kOneThread = "OMP_NUM_THREADS=1 ddprun --nproc-per-node 3 train";
constexpr const char* kOverGloo = "DDP_BACKEND=gloo ddprun --nproc-per-node 3 train";
constexpr const char* kLogBucket = "DDP_LOG_SUBSYS=bucket ddprun --nproc-per-node 3 train";
constexpr const char* kProcesses = "ps --ppid 4711 -o pid,stat,etime,pcpu,rss,wchan:20,comm";
constexpr const char* kThreads = "ps -L -p 4712 -o tid,stat,pcpu,wchan:20,comm";
constexpr const char* kContinue = "kill -CONT 4712";
constexpr const char* kAddress =
    "DDP_BACKEND=gloo DDP_LOG_SUBSYS=init ddprun --nproc-per-node 3 train 2>&1 | grep gloo:";
constexpr const char* kNoInterface = "DDP_BACKEND=gloo GLOO_SOCKET_IFNAME=eth9 ddprun --nproc-per-node 3 train";

constexpr const char* kDump = "kill -USR2 4711";
constexpr const char* kLastCalls =
    "for f in /tmp/ddp_rank*; do python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); g = d[\"groups\"][0]; "
    "c = (g[\"calls\"] or [{}])[-1]; print(d[\"rank\"], d[\"phase\"], g[\"entered\"], c.get(\"operation\"), "
    "c.get(\"state\"))' $f; done";

const std::set<std::string> kTried{kDump,      kLastCalls, kPlain,   kLogInit,    kByHand,    kInspect,
                                   kLogColl,   kWarn,      kTimeout, kSourceLine, kOneThread, kOverGloo,
                                   kLogBucket, kProcesses, kThreads, kContinue,   kAddress,   kNoInterface};

/// They need a GPU, rights or a container.
const std::set<std::string> kUntried{
    "dmesg --ctime | grep -i 'killed process'", "cat /sys/fs/cgroup/memory.events",
    "NCCL_DEBUG=INFO ddprun --nproc-per-node 2 train",
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_DEBUG_FILE=/tmp/nccl.%h.%p ddprun --nproc-per-node 2 train",
    "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"};

/// Every line of the document's blocks for a shell.
std::set<std::string> commands() {
  std::istringstream document(contents(TROUBLESHOOTING));
  std::set<std::string> found;
  bool is_inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("```"))
      is_inside = line == "```sh";
    else if (is_inside)
      found.insert(line);
  }
  return found;
}

using Changes = std::map<std::string, std::string>;

std::string changed(std::string command, const Changes& changes) {
  for (const auto& [from, to] : changes) {
    const auto at = command.find(from);
    if (at == std::string::npos) throw std::logic_error(from + " is not in " + command);
    command.replace(at, from.size(), to);
  }
  return command;
}

/// A shell in a folder where the programs have the document's names, with a job of which rank 1 is in trouble.
class Shell {
 public:
  explicit Shell(std::string trouble = {}) : trouble_(std::move(trouble)) {
    std::filesystem::create_symlink(DDPRUN, folder_ / "ddprun");
    std::filesystem::create_symlink(TRAIN, folder_ / "train");
  }
  ~Shell() {
    for (const auto& job : jobs_)
      if (job.pid() > 0) ::kill(-job.pid(), SIGKILL);
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  /// Its process becomes the command's, where it is one and no word of the shell's.
  Launched& start(const std::string& command, const Changes& changes = {}) {
    EXPECT_TRUE(commands().contains(command)) << "not in the document: " << command;
    const bool is_one = command.find_first_of("|;") == std::string::npos && !command.starts_with("kill");
    const auto line = (is_one ? "exec env " : "") + changed(command, changes);
    return jobs_.emplace_back(std::vector<std::string>{"/bin/sh", "-c", line}, [&] {
      const char* path = std::getenv("PATH");
      ::setenv("PATH", (folder_.path().string() + ":" + (path == nullptr ? "/usr/bin:/bin" : path)).c_str(), 1);
      ::setenv("TROUBLE", trouble_.c_str(), 1);
      ::setenv("DDP_DUMP_DIR", folder_.path().c_str(), 1);
      if (::chdir(folder_.path().c_str()) != 0) ::_exit(98);
    });
  }
  std::string folder() const { return folder_.path(); }
  /// To its end: all that it has said.
  std::string run(const std::string& command, const Changes& changes = {}) {
    auto& job = start(command, changes);
    job.finish(15s);
    return job.text();
  }

 private:
  TempFolder folder_;
  std::string trouble_;
  std::deque<Launched> jobs_;  // references stay
};

TEST(Recipes, AreAllTriedOrNamed) {
  for (const auto& command : commands())
    EXPECT_TRUE(kTried.contains(command) || kUntried.contains(command)) << "nobody tries: " << command;
  EXPECT_FALSE(commands().empty());
}

TEST(Recipes, OfASilentStartShowWhoHasCome) {
  expect_contains(Shell().run(kLogInit),
                  {"init: store at 127.0.0.1:", "init: rank 1 is here: host ", ", process ", "world size 3, hosts: "});
}

/// One that was free a moment ago.
std::string free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool is_bound = ::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                        ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(listener);
  if (!is_bound) throw std::runtime_error("no port");
  return std::to_string(ntohs(address.sin_port));
}

TEST(Recipes, OfASilentStartShowWhatOneHostSees) {
  Shell shell;
  const auto port = free_port(), other_port = free_port();
  auto& first = shell.start(kByHand, {{"29500", port}, {"DDP_TIMEOUT=60", "DDP_TIMEOUT=3.3"}});
  auto& second =
      shell.start(kByHand, {{"29500", other_port}, {"DDP_TIMEOUT=60", "DDP_TIMEOUT=3.3"}, {" RANK=0", " RANK=1"}});
  for (auto* job : {&first, &second}) job->finish();
  expect_contains(first.text(),
                  {"waiting at 127.0.0.1:" + port + " for rank 1 of 2; here: rank 0 (", "missing rank 1"});
  expect_contains(second.text(), {"waiting for rank 0 at 127.0.0.1:" + other_port});
}

/// Asks until two ranks wait for rank 1, whose line has `of_rank_1`.
std::string asked(Shell& shell, pid_t job, const std::string& of_rank_1) {
  const auto limit = Clock::now() + 10s;
  std::string text;
  while ((count(text, "now in all_reduce #") != 2 || !contains(text, of_rank_1)) && Clock::now() < limit)
    text = shell.run(kInspect, {{"4711", std::to_string(job)}});
  return text;
}

constexpr const char* kInValidation = "now not in a collective in step 3, in \"validation\" since ";

std::string process_of_rank_1(const std::string& inspected) {
  std::smatch match;
  if (!std::regex_search(inspected, match, std::regex(R"(rank 1 \(process (\d+)\))")))
    throw std::runtime_error("no rank 1 in " + inspected);
  return match[1];
}

TEST(Recipes, OfAJobThatHasStoppedShowThePhaseOfTheOneThatIsWaitedFor) {
  Shell shell("validation");
  const auto text = asked(shell, shell.start(kPlain).pid(), kInValidation);
  expect_contains(text, {"group of all 3 ranks, backend ", "  rank 0 (process ", kInValidation,
                         " \"bucket 1 of 1 (layer3.bias to layer0.weight)\" (591 doubles) in step 3 since "});
}

TEST(Recipes, OfAJobThatHasStoppedShowALoopThatHasEnded) {
  Shell shell("end");
  constexpr const char* ended = "now not in a collective, after its last batch";
  EXPECT_TRUE(contains(asked(shell, shell.start(kPlain).pid(), ended), ended));
}

const std::string kNeverMeet = "the ranks wait in different calls, which never meet: probably ";

TEST(Recipes, OfCallsThatNeverMeetShowThemAndWhoHadFewerBatches) {
  expect_contains(Shell("batches").run(kPlain),
                  {kNeverMeet + "rank 1 had fewer batches and left the loop earlier", "  ranks 0, 2: all_reduce #",
                   "\"mean\" (1 double) in step 2, called by the program after its last batch"});
}

TEST(Recipes, OfCallsThatNeverMeetShowTheOneThatOnlyRank0Makes) {
  expect_contains(Shell("rank 0").run(kPlain), {kNeverMeet + "rank 0 has made a call under an `if (rank == 0)`",
                                                "  ranks 1, 2: all_reduce #", "  rank 0: barrier #"});
}

TEST(Recipes, OfEachCollectiveShowWhereTheRanksPart) {
  const auto text = Shell("batches").run(kLogColl);
  for (const auto* made :
       {"rank 0: coll: all_reduce #[0-9]+ \"bucket 1 of 1", "rank 1: coll: all_reduce #[0-9]+ \"mean\"",
        "rank 2: coll: all_reduce #[0-9]+ \"bucket 1 of 1"})
    EXPECT_TRUE(std::regex_search(text, std::regex(made))) << made << " is not in:\n" << text;
  EXPECT_EQ(text.find("info"), std::string::npos) << text;
}

// The time is what is tested.
TEST(Recipes, OfAWarningShowWhatTheSlowRankDoes) {
  Shell shell("data");
  const auto& text = shell.start(kWarn, {{"=20", "=2"}}).read_until("  rank 2: last completed", 1);
  expect_contains(text, {"step 3 has lasted ", ": rank 1 is loading data in step 2 since ", ", its thread sleeps",
                         "Samples::get(unsigned long)"});
}

TEST(Recipes, OfATimeoutShowTheVerdictAndLinesOfSource) {
  Shell shell("slow");
  const auto& text = shell.start(kTimeout, {{"=40", "=2"}}).read_until("]   rank 2: last completed", 1);
  expect_contains(text, {"step 3: timed out after 2.0 s: rank 1 is in \"augmenting\" in step 3 since ", ", its thread ",
                         "]   rank 0: last completed all_reduce #", "]   rank 1: last completed all_reduce #"});
  std::smatch frame;
  ASSERT_TRUE(std::regex_search(text, frame, std::regex(R"(at [^\n]*train\(\) in [^\n]*\(\+(0x[0-9a-f]+)\))"))) << text;
  EXPECT_TRUE(contains(shell.run(kSourceLine, {{"0x2134d", frame[1]}}), "train()"));
}

TEST(Recipes, OfASlowJobShowThreadsAndBackend) {
  EXPECT_TRUE(contains(Shell().run(kOneThread), "threads a rank: 1\n"));
  EXPECT_TRUE(contains(Shell().run(kOverGloo), "backend gloo, "));
}

TEST(Recipes, OfASlowJobShowTheBuckets) {
  EXPECT_TRUE(contains(Shell().run(kLogBucket), "bucket 1 of 1 (layer3.bias to layer0.weight)"));
}

/// As in the document.
void expect_equal_parameters(const std::shared_ptr<torch::nn::Module>& net,
                             const std::shared_ptr<ProcessGroup>& group) {
  for (const auto& entry : net->named_parameters()) {
    const auto sums = group->all_gather(entry.value().detach().to(torch::kDouble).sum().reshape({1}));
    for (const auto& sum : sums)
      if (!torch::equal(sum, sums[0])) throw std::runtime_error(entry.key() + " differs between the ranks, or is NaN");
  }
}

TEST(Recipes, OfRanksThatDifferFindTheParameter) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::manual_seed(1);
    const std::shared_ptr<torch::nn::Module> net = torch::nn::Linear(4, 2).ptr();
    expect_equal_parameters(net, group);
    const torch::NoGradGuard no_grad;
    for (const double change : {1e-6, std::nan("")}) {
      if (group->rank() == 1) net->named_parameters()["bias"][0] += change;
      try {
        expect_equal_parameters(net, group);
        ADD_FAILURE() << "no exception";
      } catch (const std::runtime_error& error) {
        EXPECT_TRUE(contains(error.what(), "bias differs between the ranks"));
      }
    }
  });
}

TEST(Recipes, OfAKilledRankShowWhoItWasAndTheSignal) {
  expect_contains(Shell("memory").run(kPlain),
                  {": rank 1 died (its connection closed without a goodbye; the process ended or was killed) (this "
                   "rank ends because of rank 1)",
                   "ddprun: rank 1 failed first, ",
                   "): killed by SIGKILL (signal 9), not by ddprun; perhaps out of memory (see dmesg)\n",
                   ": exit code 76, because it lost a peer\n"});
}

#ifdef PS
/// The state of that process in the output of kProcesses.
std::string state_of(const std::string& pid, const std::string& shown) {
  std::smatch match;
  const std::regex line("(^|\n) *" + pid + " +([A-Za-z]+)");
  return std::regex_search(shown, match, line) ? match[2].str() : "(none)";
}

/// Looks until the state begins with one of `letters`.
std::string state_until(Shell& shell, const std::string& letters, pid_t job, const std::string& pid) {
  const auto limit = Clock::now() + 5s;
  std::string state;
  do {
    state = state_of(pid, shell.run(kProcesses, {{"4711", std::to_string(job)}}));
  } while (letters.find(state[0]) == std::string::npos && Clock::now() < limit);
  return state;
}

TEST(Recipes, OfTheProcessesShowRanksThreadsAndWhoIsStopped) {
  Shell shell("validation");
  const auto job = shell.start(kPlain).pid();
  const auto rank_1 = process_of_rank_1(asked(shell, job, kInValidation));
  const auto processes = shell.run(kProcesses, {{"4711", std::to_string(job)}});
  EXPECT_EQ(count(processes, " train\n"), 3) << processes;
  EXPECT_EQ(count(processes, " ddprun\n"), 1) << processes;
  EXPECT_EQ(count(processes, " ddprun-relay\n"), 1) << processes;
  expect_contains(shell.run(kThreads, {{"4712", rank_1}}), {" ddp-watchdog\n", " ddp-inspect\n", " ddp-watch-link\n"});
  EXPECT_EQ(state_until(shell, "S", job, rank_1)[0], 'S');
  ::kill(std::stoi(rank_1), SIGSTOP);
  EXPECT_EQ(state_until(shell, "T", job, rank_1)[0], 'T');
  shell.run(kContinue, {{"4712", rank_1}});
  EXPECT_EQ(state_until(shell, "S", job, rank_1)[0], 'S');
}
#endif

TEST(Recipes, OfDumpsShowWhichRankIsBehind) {
  Shell shell("validation");
  auto& job = shell.start(kPlain);
  asked(shell, job.pid(), kInValidation);
  shell.run(kDump, {{"4711", std::to_string(job.pid())}});
  job.read_until(": SIGUSR2: this rank's calls are in " + shell.folder(), 3);
  const auto text = shell.run(kLastCalls, {{"/tmp/", shell.folder() + '/'}});
  std::smatch last;
  const std::regex lines(
      "0 backward ([0-9]+) all_reduce started\n1 validation ([0-9]+) all_reduce completed\n"
      "2 backward ([0-9]+) all_reduce started\n");
  ASSERT_TRUE(std::regex_match(text, last, lines)) << text;
  EXPECT_EQ(std::stoi(last[1]), std::stoi(last[2]) + 1);
  EXPECT_EQ(last[1], last[3]);
}

TEST(Recipes, OfGlooShowTheAddress) {
  EXPECT_TRUE(contains(Shell().run(kAddress), "gloo: interface of this host, address "));
}

TEST(Recipes, OfGlooShowTheInterfacesThatExist) {
  EXPECT_TRUE(
      contains(Shell().run(kNoInterface), "there is no interface eth9; the interfaces of this host that are up: "));
}

}  // namespace
}  // namespace ddp::testing
