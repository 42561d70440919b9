// ddprun's command line.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <sstream>

#include "base/cores.hpp"
#include "ddp/error.hpp"
#include "launch/options.hpp"

namespace ddp::launch {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<const char*>;

std::optional<Options> parsed(Words words, bool adds_program = false) {
  words.insert(words.begin(), "ddprun");
  if (adds_program) words.push_back("prog");
  std::ostringstream out;
  return parse_options(static_cast<int>(words.size()), words.data(), out);
}

Options of(const Words& words) { return parsed(words, true).value(); }

/// What is said of a command line that is refused: one line.
std::string refused(const Words& words) {
  try {
    parsed(words, true);
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("ddprun: ")) << text;
    return text;
  }
  std::string all;
  for (const auto* word : words) all.append(" ").append(word);
  ADD_FAILURE() << "accepted:" << all;
  return {};
}

void expect_refused(const Words& words, const std::string& mentions) {
  const auto text = refused(words);
  EXPECT_NE(text.find(mentions), std::string::npos) << text;
}

TEST(Options, DashesUnderscoresAndEqualSignsMeanTheSame) {
  for (const auto& words :
       {Words{"--nproc-per-node", "3"}, Words{"--nproc_per_node", "3"}, Words{"--nproc_per_node=3", "--no-python"}}) {
    EXPECT_EQ(of(words).ranks, 3);
    EXPECT_EQ(of(words).command, std::vector<std::string>{"prog"});
  }
}

TEST(Options, ChecksOnFourRanksUnlessToldHowMany) {
  EXPECT_EQ(of({}).ranks, 1);
  EXPECT_EQ(of({}).check, "");
  EXPECT_EQ(of({"--check"}).ranks, 4);
  EXPECT_EQ(of({"--check"}).check, "1");
  EXPECT_EQ(of({"--check-long", "--nproc-per-node", "1"}).ranks, 1);
  EXPECT_EQ(of({"--check-long", "--check"}).check, "long");
}

TEST(Options, WhatFollowsTheProgramIsTheProgramsOwn) {
  const auto options = parsed({"--master-port", "29500", "prog", "--master-port", "1", "--", "--help"});
  EXPECT_EQ(options->master_port, 29500);
  EXPECT_EQ(options->command, (std::vector<std::string>{"prog", "--master-port", "1", "--", "--help"}));
}

TEST(Options, EveryFlagOfTorchrunsThatIsServedIsTaken) {
  const auto options = of({"--nnodes=2:2",
                           "--node_rank",
                           "1",
                           "--master_addr",
                           "host",
                           "--master_port",
                           "77",
                           "--rdzv_id",
                           "j",
                           "--rdzv_backend",
                           "static",
                           "--rdzv_conf",
                           "join_timeout=7",
                           "--max_restarts",
                           "3",
                           "--monitor_interval",
                           "0.5",
                           "--local_addr",
                           "10.0.0.2",
                           "--role",
                           "trainer",
                           "--log_dir",
                           "/l",
                           "-r",
                           "1",
                           "-t",
                           "0:2,1:3",
                           "--nproc_per_node",
                           "2",
                           "--local_ranks_filter",
                           "1",
                           "--shutdown_timeout",
                           "4"});
  EXPECT_EQ(options.nodes, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.master_address, "host");
  EXPECT_EQ(options.master_port, 77);
  EXPECT_EQ(options.job_id, "j");
  EXPECT_EQ(options.join_timeout, 7s);
  EXPECT_EQ(options.max_restarts, 3);
  EXPECT_EQ(options.local_address, "10.0.0.2");
  EXPECT_EQ(options.role, "trainer");
  EXPECT_EQ(options.output.log_folder, "/l");
  EXPECT_EQ(options.output.redirects, "1");
  EXPECT_EQ(options.output.tee, "0:2,1:3");
  EXPECT_EQ(options.output.shown_ranks, "1");
  EXPECT_EQ(options.shutdown_timeout, 4s);
  EXPECT_EQ(of({"-r3"}).output.redirects, "3");
}

TEST(Options, TorchrunsVariablesStandForFlagsThatAreNotGiven) {
  ::setenv("PET_NNODES", "3", 1);
  ::setenv("PET_NODE_RANK", "2", 1);
  ::setenv("PET_MASTER_ADDR", "a", 1);
  const auto options = of({"--node-rank", "1"});
  EXPECT_EQ(options.nodes, 3);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.master_address, "a");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(parsed({"--inspect", "1"})->inspected, 1);
  for (const auto* const name : {"PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR"}) ::unsetenv(name);
}

TEST(Options, AnEndpointIsHostAndPort) {
  const auto place = [](const char* text) {
    const auto options = of({"--rdzv-endpoint", text});
    return options.master_address + " " + std::to_string(options.master_port);
  };
  EXPECT_EQ(place("host:29501"), "host 29501");
  EXPECT_EQ(place("host"), "host 0");
  EXPECT_EQ(place("localhost:0"), "localhost 0");
  EXPECT_EQ(place("[fe80::1]:5"), "fe80::1 5");
  EXPECT_EQ(place("[fe80::1]"), "fe80::1 0");
  EXPECT_EQ(place("fe80::1"), "fe80::1 0");
  for (const char* const wrong : {"host:", ":5", "host:x", "[a]b:5", "[]:5", "host:70000"}) {
    expect_refused({"--rdzv-endpoint", wrong}, "--rdzv-endpoint");
  }
}

TEST(Options, CpuAndAutoAreTheCoresWhereThereIsNoGpu) {
  const int cores = std::max(1, static_cast<int>(allowed_cores()));
  EXPECT_EQ(of({"--nproc-per-node", "cpu"}).ranks, cores);
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(of({"--nproc-per-node", "auto"}).ranks, cores);
  expect_refused({"--nproc-per-node", "gpu"}, "no GPU");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(Options, WhatContradictsItselfIsRefused) {
  expect_refused({"--standalone", "--master-port", "29500"}, "--master-port");
  expect_refused({"--standalone", "--master-addr", "a"}, "--master-addr");
  expect_refused({"--standalone", "--nnodes", "2"}, "--nnodes");
  expect_refused({"--standalone", "--node-rank", "1"}, "--node-rank");
  expect_refused({"--standalone", "--rdzv-endpoint", "a:1"}, "--rdzv-endpoint");
  expect_refused({"--rdzv-endpoint", "a:1", "--master-addr", "a"}, "--master-addr");
  expect_refused({"--nnodes", "2"}, "--master-addr");
  expect_refused({"--nnodes", "2", "--node-rank", "2", "--master-addr", "a"}, "--node-rank 2");
  expect_refused({"--node-rank", "1"}, "--node-rank 1");
  expect_refused({"--nnodes", "1:4"}, "1:4");
  expect_refused({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "a"}, "c10d");
  expect_refused({"--rdzv-backend", "etcd"}, "etcd");
  expect_refused({"--inherit-output", "--tee", "3"}, "--inherit-output");
  expect_refused({"--inherit-output", "--local-ranks-filter", "0"}, "--inherit-output");
  expect_refused({"--inspect", "1", "--tee", "3"}, "--inspect");
}

TEST(Options, WhatMakesNoSenseIsRefusedByName) {
  const std::vector<std::pair<Words, std::string>> all{{{"--nproc-per-node", "0"}, "--nproc-per-node"},
                                                       {{"--nproc-per-node", "-1"}, "--nproc-per-node"},
                                                       {{"--nproc-per-node", "5000"}, "4096"},
                                                       {{"--nproc-per-node", "tpu"}, "\"tpu\""},
                                                       {{"--nnodes", "0"}, "--nnodes"},
                                                       {{"--nnodes", "x"}, "--nnodes"},
                                                       {{"--master-port", "0"}, "--master-port"},
                                                       {{"--max-restarts", "-1"}, "--max-restarts"},
                                                       {{"--monitor-interval", "soon"}, "--monitor-"},
                                                       {{"--shutdown-timeout", "nan"}, "--shutdown-timeout"},
                                                       {{"--exit-grace", ""}, "--exit-grace"},
                                                       {{"--redirects", "4"}, "--redirects"},
                                                       {{"--tee", "0:9"}, "--tee"},
                                                       {{"--tee", "1:3"}, "--tee"},
                                                       {{"--tee", "0:3,"}, "--tee"},
                                                       {{"--local-ranks-filter", "1"}, "--local-ranks-filter"},
                                                       {{"--rdzv-conf", "a=b"}, "--rdzv-conf"},
                                                       {{"--rdzv-conf", "timeout=x"}, "--rdzv-conf"},
                                                       {{"--colour", "red"}, "--colour"},
                                                       {{"--nproc-per-nod", "2"}, "--nproc-per-nod"}};
  for (const auto& [words, mentions] : all) expect_refused(words, mentions);
}

TEST(Options, ASlipOfTheFingerIsMended) {
  expect_refused({"--nproc-per-nod=2"}, "did you mean --nproc-per-node?");
  expect_refused({"--max-restart", "2"}, "did you mean --max-restarts?");
  expect_refused({"-np", "2"}, "did you mean --nproc-per-node?");
  expect_refused({"--colour"}, "see ddprun --help");
}

TEST(Options, FlagsOfTorchrunsThatAreNotServedSaySo) {
  for (const char* const flag :
       {"-m", "--module", "--run-path", "--run_path", "--start-method", "--start_method=spawn", "--event-log-handler",
        "--logs-specs", "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--numa-binding=node",
        "--signals-to-handle", "--virtual-local-rank"}) {
    expect_refused({flag}, "of torchrun's is not served");
  }
}

const Words kPool{"--nproc-per-node",
                  "--nnodes",
                  "--node-rank",
                  "--master-addr",
                  "--master-port",
                  "--standalone",
                  "--rdzv-id",
                  "--rdzv-endpoint",
                  "--rdzv-backend",
                  "--rdzv-conf",
                  "--max-restarts",
                  "--monitor-interval",
                  "--local-addr",
                  "--log-dir",
                  "--redirects",
                  "--tee",
                  "-r",
                  "-t",
                  "--role",
                  "--shutdown-timeout",
                  "--exit-grace",
                  "--dry-run",
                  "--bind-cores",
                  "--check",
                  "--check-long",
                  "--inherit-output",
                  "--local-ranks-filter",
                  "--no-python",
                  "--inspect",
                  "--",
                  "-",
                  "",
                  "0",
                  "1",
                  "2",
                  "-1",
                  "1:2",
                  "0:3",
                  "0:3,1:1",
                  ",",
                  "=",
                  "--=",
                  "--tee=",
                  "static",
                  "c10d",
                  "cpu",
                  "auto",
                  "a",
                  "a:1",
                  "[::1]:5",
                  "[",
                  "1e9",
                  "nan",
                  "inf",
                  "99999999999999999999",
                  "\xff\xfe",
                  "%s%n",
                  "--nproc-per-node=2",
                  "--nnodes=",
                  "-x",
                  "---",
                  "prog"};

// Whatever is typed, and whatever torchrun's variables hold: options, or one line.
TEST(Options, AnyWordsAreTakenOrRefusedInOneLine) {
  const Words variables{"PET_NNODES",       "PET_NODE_RANK",   "PET_NPROC_PER_NODE",
                        "PET_MASTER_ADDR",  "PET_MASTER_PORT", "PET_RDZV_ENDPOINT",
                        "PET_MAX_RESTARTS", "PET_TEE",         "PET_RDZV_CONF"};
  std::mt19937 random(20261130);
  int taken = 0, refused_ones = 0;
  for (int i = 0; i < 20000; ++i) {
    Words words;
    for (auto left = random() % 7; left > 0; --left) words.push_back(kPool[random() % kPool.size()]);
    const auto* const variable = variables[random() % variables.size()];
    if (random() % 4 == 0) ::setenv(variable, kPool[random() % kPool.size()], 1);
    try {
      const auto options = parsed(words);
      if (options && !options->inspected) {
        EXPECT_FALSE(options->command.empty());
        EXPECT_GE(options->ranks, 1);
        EXPECT_LT(options->node_rank, options->nodes);
      }
      ++taken;
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      ++refused_ones;
    }
    ::unsetenv(variable);
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused_ones, 1000);
}

}  // namespace
}  // namespace ddp::launch
