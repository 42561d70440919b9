// Start-up as a whole with values of the environment that make no sense: a group or an error in words, in time.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <random>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using Variables = std::map<std::string, std::string>;

const std::vector<std::string> kNames{"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "GROUP_RANK",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_RUN_ID",
                                      "TORCHELASTIC_RESTART_COUNT",
                                      "TORCHELASTIC_USE_AGENT_STORE",
                                      "DDP_STORE_FD",
                                      "DDP_TIMEOUT",
                                      "DDP_LOG_LEVEL",
                                      "DDP_LOG_SUBSYS",
                                      "GLOO_SOCKET_IFNAME",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "PMIX_NAMESPACE",
                                      "SLURM_PROCID",
                                      "SLURM_NTASKS",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_STEP_NODELIST",
                                      "SLURM_STEP_TASKS_PER_NODE",
                                      "SLURM_LOCALID",
                                      "SLURM_JOB_ID",
                                      "PMI_SIZE",
                                      "KUBERNETES_SERVICE_HOST"};

const std::vector<std::string> kValues{"",        "0",         "1",
                                       "2",       "3",         "-1",
                                       "x",       "1x",        "65535",
                                       "True",    "node[1-2]", "2(x2)",
                                       "lo",      "^lo",       "^",
                                       ",",       "127.0.0.1", "::1",
                                       "[::1]",   "localhost", "nonexistent.invalid",
                                       "0.0.0.0", "\xff\n",    std::string(3000, '7')};

// Every value but those with which a start would wait for longer than a test does.
std::string value_for(const std::string& name, std::mt19937& random) {
  const std::vector<std::string> times{"", "x", "-1", "0", "nan", "inf", "1e99", "0.2", "0x1"};
  return name == "DDP_TIMEOUT" ? times[random() % times.size()] : kValues[random() % kValues.size()];
}

std::uint16_t free_port() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(descriptor);
  return ntohs(address.sin_port);
}

Variables good(int rank, int world, std::uint16_t port) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},   {"MASTER_PORT", std::to_string(port)},
          {"DDP_TIMEOUT", "0.5"},         {"DDP_LOG_LEVEL", "error"}};
}

// Takes these variables for the whole process, and starts.
void start_with(const Variables& variables) {
  for (const auto& name : kNames) ::unsetenv(name.c_str());
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  try {
    const auto group = init_process_group();
    auto tensor = at::ones({10});
    group->all_reduce(tensor);
    group->shutdown();
  } catch (const Error& error) {
    EXPECT_GT(std::string_view(error.what()).size(), 20u) << error.what();
    EXPECT_FALSE(contains(error.what(), "Exception raised from")) << error.what();
  }
}

void expect_a_group_or_words(const std::vector<Outcome>& outcomes, const std::vector<Variables>& tried) {
  for (const auto& outcome : outcomes) {
    std::string text;
    for (const auto& [name, value] : tried[static_cast<std::size_t>(outcome.rank)]) text += name + "=" + value + ' ';
    EXPECT_TRUE(outcome.succeeded()) << outcome.ending() << " with " << text << '\n' << outcome.output;
    EXPECT_EQ(outcome.output.find("c10d"), std::string::npos) << text << '\n' << outcome.output;
  }
}

TEST(StartFuzz, AProcessWithAnyVariablesHasAGroupOrAnErrorInWords) {
  std::mt19937 random(4660);
  for (int batch = 0; batch < 5; ++batch) {
    std::vector<Variables> tried;
    for (int i = 0; i < 24; ++i) {
      auto variables = random() % 2 == 0 ? Variables{{"DDP_TIMEOUT", "0.5"}} : good(0, 1, free_port());
      for (int change = 0; change < 3; ++change) {
        const auto& name = kNames[random() % kNames.size()];
        variables[name] = value_for(name, random);
      }
      tried.push_back(std::move(variables));
    }
    expect_a_group_or_words(
        observe_ranks(24, [&](const Environment& e) { start_with(tried[static_cast<std::size_t>(e.rank)]); }), tried);
  }
}

// Some worlds of two at a time; in each, one rank's variables are changed.
TEST(StartFuzz, TwoProcessesOfWhichOneIsWrongBothHaveAGroupOrAnErrorInWords) {
  std::mt19937 random(20061);
  for (int batch = 0; batch < 4; ++batch) {
    std::vector<Variables> tried;
    for (int world = 0; world < 8; ++world) {
      const auto port = free_port();
      for (int rank = 0; rank < 2; ++rank) tried.push_back(good(rank, 2, port));
      auto& wrong = tried[tried.size() - 1 - random() % 2];
      for (unsigned change = 0; change < 1 + random() % 2; ++change) {
        const auto& name = kNames[random() % kNames.size()];
        wrong[name] = value_for(name, random);
      }
    }
    expect_a_group_or_words(
        observe_ranks(16, [&](const Environment& e) { start_with(tried[static_cast<std::size_t>(e.rank)]); }), tried);
  }
}

}  // namespace
}  // namespace ddp::testing
