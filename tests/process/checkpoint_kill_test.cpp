// R53: rank 0 is killed at any moment of a save.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "ddp/checkpoint.hpp"
#include "launched.hpp"
#include "support/temp_folder.hpp"

namespace ddp::test {
namespace {

using ddp::testing::TempFolder;

constexpr int kKills = 10;                             // of each kind; DDP_TEST_KILLS chooses another number
constexpr std::chrono::microseconds kLongest{60'000};  // several saves

int kills() {
  const auto* number = std::getenv("DDP_TEST_KILLS");
  return number ? std::atoi(number) : kKills;
}

pid_t rank0_in(const std::string& text) {
  const std::string words = "rank 0 is process ";
  return std::stoi(text.substr(text.find(words) + words.size()));
}

/// The step in the file; every weight must be of that step.
std::int64_t step_in(const std::filesystem::path& path) {
  const torch::nn::Linear net(1024, 512);
  const auto step = Checkpoint(path, net).load_or_start().step;
  EXPECT_TRUE(net->weight.eq(step).all().item<bool>() && net->bias.eq(step).all().item<bool>()) << path;
  return step;
}

void kill_at_random_moments(bool in_background) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  std::mt19937 random(std::random_device{}());
  std::int64_t last = 0;
  std::vector<std::string> words{DDPRUN, "--nproc-per-node", "2", CHECKPOINT_PROGRAM, path.string()};
  if (in_background) words.emplace_back("background");
  for (int i = 0; i < kills(); ++i) {
    Launched job(words);
    const auto text = job.read_until("saved ", 2);
    const std::chrono::microseconds pause(random() % kLongest.count());
    std::this_thread::sleep_for(pause);  // no synchronisation: the moment that is tried
    ASSERT_EQ(::kill(rank0_in(text), SIGKILL), 0);
    EXPECT_NE(job.finish(), 0);
    const auto step = step_in(path);
    EXPECT_GT(step, last) << "killed " << pause.count() << " us after the second save";
    if (std::filesystem::exists(folder / "run.1.pt")) {
      EXPECT_LE(step_in(folder / "run.1.pt"), step);  // for a moment both are the same
    }
    last = step;
  }
}

TEST(CheckpointKill, LeavesTheOldFileOrTheNewOne) { kill_at_random_moments(/*in_background=*/false); }
TEST(CheckpointKill, LeavesTheOldFileOrTheNewOneInTheBackground) { kill_at_random_moments(/*in_background=*/true); }

}  // namespace
}  // namespace ddp::test
