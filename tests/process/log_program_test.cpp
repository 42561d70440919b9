// The log of a job (R80), as its ranks write it: through no relay. DDPRUN and LOG_PROGRAM are the paths of the
// programs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "process/launched.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

constexpr int kRanks = 4, kSteps = 101;

using Lines = std::vector<std::string>;

/// Those in which a rank speaks, without their time.
Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line.substr(std::min(line.size(), std::size_t{25})));
  return lines;
}

/// What the program logs on `rank`; its lines for rank 0 are there where `of_rank_0` says so.
Lines expected(int rank, bool of_rank_0) {
  const auto begin = "info rank " + std::to_string(rank) + ": ";
  Lines lines;
  for (int step = 0; step < kSteps; ++step) {
    const auto number = std::to_string(step);
    if (rank == 0) lines.push_back(begin + "alone " + number);
    lines.push_back(begin + "step " + number + ' ' + std::string(static_cast<std::size_t>(step) * 30, 'x') + '.');
    if (of_rank_0 && step % 50 == 0) lines.push_back(begin + "mean 1.5");
  }
  return lines;
}

class LogOfAJob : public ::testing::Test {
 protected:
  /// What the job shows. The program asks for a file itself, or DDP_LOG_FILE does.
  Lines run(const std::string& path, bool by_variable = false) {
    Lines words{DDPRUN, "--inherit-output", "--nproc-per-node", std::to_string(kRanks), LOG_PROGRAM};
    if (!by_variable) words.push_back(folder_ / path);
    test::Launched job(words, [&] {
      if (by_variable) ::setenv("DDP_LOG_FILE", (folder_ / path).c_str(), 1);
    });
    EXPECT_EQ(job.finish(), 0) << job.text();
    return lines_of(job.text());
  }
  void fail(const std::string& path, const std::string& error) {
    test::Launched job(
        {DDPRUN, "--inherit-output", "--nproc-per-node", std::to_string(kRanks), LOG_PROGRAM, folder_ / path, error});
    EXPECT_EQ(job.finish(), 1) << job.text();
  }
  Lines file(const std::string& path) const { return lines_of(contents(folder_ / path)); }
  Lines files() const {
    Lines names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path()))
      if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(folder_.path()));
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  TempFolder folder_;
};

TEST_F(LogOfAJob, OneFileOfRankZeroAlone) {
  auto shown = run("new/folder/run.log");
  EXPECT_EQ(files(), (Lines{"new/folder/run.log"}));
  EXPECT_EQ(file("new/folder/run.log"), expected(0, true));

  auto wanted = expected(0, true);
  for (int rank = 1; rank < kRanks; ++rank) {
    const auto more = expected(rank, false);
    wanted.insert(wanted.end(), more.begin(), more.end());
  }
  std::sort(shown.begin(), shown.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_TRUE(std::includes(shown.begin(), shown.end(), wanted.begin(), wanted.end()))
      << "a line of the console is torn or missing";
}

TEST_F(LogOfAJob, AFileForEachRankOnRequest) {
  run("logs/a/rank{rank}.log");
  EXPECT_EQ(files(), (Lines{"logs/a/rank0.log", "logs/a/rank1.log", "logs/a/rank2.log", "logs/a/rank3.log"}));
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(file("logs/a/rank" + std::to_string(rank) + ".log"), expected(rank, true));
}

TEST_F(LogOfAJob, TheVariablesFileHasTheMeetingToo) {
  run("{rank}.log", true);
  EXPECT_EQ(files(), (Lines{"0.log", "1.log", "2.log", "3.log"}));
  for (int rank = 0; rank < kRanks; ++rank) {
    auto lines = file(std::to_string(rank) + ".log");
    const auto own = expected(rank, true);
    ASSERT_GT(lines.size(), own.size());
    EXPECT_TRUE(contains(lines.front(), ": world size 4, "));
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(own.size()));
    EXPECT_EQ(lines, own);
  }
}

TEST_F(LogOfAJob, TheTextThatEndsItIsInItsFiles) {
  fail("run.log", "no more data");
  EXPECT_TRUE(contains(file("run.log").back(), "rank 1 failed: no more data (this rank ends because of rank 1)"));
  fail("{rank}.log", "no more data");
  EXPECT_EQ(file("1.log").back(), "error rank 1: rank 1 of 4: no more data");
}

}  // namespace
}  // namespace ddp::testing
