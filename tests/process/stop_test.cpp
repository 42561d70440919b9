// One signal, to a rank or to the launcher: all ranks save after the same step and exit 0 (R72). DDPRUN and
// STOP_PROGRAM are the paths of the programs.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>

#include "process/launched.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

constexpr int kWorld = 3;

int number_behind(const std::string& text, const std::string& words) {
  const auto at = text.find(words);
  if (at == std::string::npos) throw std::runtime_error("\"" + words + "\" is not in:\n" + text);
  return std::stoi(text.substr(at + words.size()));
}

std::string name_of(int signal) { return std::string("SIG") + ::sigabbrev_np(signal); }

class StopSignal : public ::testing::TestWithParam<int> {
 protected:
  /// Ranks that have made some hundred steps.
  test::Launched start(int hundreds) const {
    test::Launched job({DDPRUN, "--nproc-per-node", std::to_string(kWorld), STOP_PROGRAM, file()});
    for (int rank = 0; rank < kWorld; ++rank) job.read_until(line(rank) + "did step", hundreds);
    return job;
  }
  std::string file() const { return folder_ / "run.pt"; }
  static std::string line(int rank) { return "rank " + std::to_string(rank) + " "; }

  void expect_stop(test::Launched& job, const std::string& whose) const {
    EXPECT_EQ(job.finish(), 0) << job.text();
    const int step = number_behind(job.text(), "rank 0 stopped after step ");
    for (int rank = 1; rank < kWorld; ++rank)
      EXPECT_EQ(number_behind(job.text(), line(rank) + "stopped after step "), step);
    expect_contains(job.text(), {"all ranks are to stop after this step: " + whose});
    auto next = start(1);
    EXPECT_TRUE(contains(next.text(), "the run goes on with epoch 0, step " + std::to_string(step)));
  }

 private:
  TempFolder folder_;
};
std::string name_of_case(const ::testing::TestParamInfo<int>& info) { return name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(Is, StopSignal, ::testing::Values(SIGTERM, SIGINT, SIGUSR1), name_of_case);

TEST_P(StopSignal, ToOneRankStopsAllAfterTheSameStep) {
  auto job = start(1 + static_cast<int>(std::mt19937(static_cast<unsigned>(GetParam()))() % 5));
  ::kill(number_behind(job.text(), "rank 2 is process "), GetParam());
  expect_stop(job, name_of(GetParam()) + " on rank 2");
}

TEST_P(StopSignal, ToTheLauncherStopsAllAfterTheSameStep) {
  auto job = start(1);
  job.signal(GetParam());
  expect_stop(job, name_of(GetParam()) + " on ");
}

}  // namespace
}  // namespace ddp::testing
