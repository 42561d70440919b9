// Fault R80.
#include "ddp/summary_writer.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/process_group.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "unit/log_heard.hpp"

namespace ddp {
namespace {

using ::ddp::testing::contains;
using ::ddp::testing::contents;
using ::ddp::testing::count;
using ::ddp::testing::Gate;
using ::ddp::testing::run_ranks;
using ::ddp::testing::TempFolder;
using Group = std::shared_ptr<ProcessGroup>;

/// All files below a folder, by their path within it.
std::vector<std::string> files_below(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(std::filesystem::relative(entry.path(), folder));
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(SummaryWriterRanks, WriteOneFileTogether) {
  const TempFolder folder;
  run_ranks(4, [&](const Group& group) {
    SummaryWriter writer(folder / "runs/one", *group, {.csv = true});
    EXPECT_EQ(writer.writes(), group->rank() == 0);
    EXPECT_EQ(writer.file().empty(), group->rank() != 0);
    writer.add_mean("mean", group->rank(), 1, SummaryWriter::Time());
    writer.add_mean("tensor", torch::full({2}, group->rank()), 2, SummaryWriter::Time());
    writer.add_scalar("local", group->rank() + 7, 3, SummaryWriter::Time());
    writer.add_histogram("h", torch::ones(3), 3);
    writer.add_image("i", torch::ones({1, 2, 2}), 3);
    writer.add_text("t", "text", 3);
    writer.flush();
  });
  const auto files = files_below(folder.path());
  ASSERT_EQ(files.size(), 2U);
  EXPECT_TRUE(files[0].starts_with("runs/one/events.out.tfevents."));
  EXPECT_EQ(contents(folder / "runs/one/scalars.csv"),
            "wall_time,step,tag,value\n0.000000,1,mean,1.5\n0.000000,2,tensor,1.5\n0.000000,3,local,7\n");
}

TEST(SummaryWriterRanks, NoCallButAddMeanCommunicates) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    if (group->rank() == 0) {
      SummaryWriter writer(folder / "run", *group);
      writer.add_scalar("s", 1, 1);
      writer.add_histogram("h", torch::ones(3), 1);
      writer.add_image("i", torch::ones({1, 2, 2}), 1);
      writer.add_text("t", "text", 1);
      writer.flush();
    }
    auto sum = torch::ones(1);
    group->all_reduce(sum);
    EXPECT_EQ(sum.item<float>(), 2);
  });
}

TEST(SummaryWriterRanks, RefuseTheSameOnEveryRank) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    SummaryWriter writer(folder / "run", *group);
    EXPECT_THROW(writer.add_scalar("", 1, 1), std::invalid_argument);
    EXPECT_THROW(writer.add_mean("", 1, 1), std::invalid_argument);
    EXPECT_THROW(writer.add_image("i", torch::ones({2, 2}), 1), std::invalid_argument);
    EXPECT_THROW(writer.add_histogram("h", at::Tensor(), 1), std::invalid_argument);
  });
}

TEST(SummaryWriterRanks, EachHasAFolderWhereAllWrite) {
  const TempFolder folder;
  run_ranks(3, [&](const Group& group) {
    SummaryWriter writer(folder.path(), *group, {.csv = true, .all_ranks = true});
    writer.add_scalar("rank", group->rank(), 1, SummaryWriter::Time());
    writer.add_mean("mean", group->rank(), 1, SummaryWriter::Time());
  });
  EXPECT_EQ(files_below(folder.path()).size(), 6U);
  for (int rank = 0; rank < 3; ++rank) {
    const auto own = "rank" + std::to_string(rank);
    EXPECT_EQ(contents(folder / (own + "/scalars.csv")),
              "wall_time,step,tag,value\n0.000000,1,rank," + std::to_string(rank) + "\n0.000000,1,mean,1\n");
  }
}

TEST(SummaryWriterRanks, FromManyJobsAtOnceMakeTheFolderTogether) {
  constexpr int jobs = 4, rounds = 50;
  const TempFolder folder;
  const Gate gate;
  ::ddp::testing::heard_from(jobs + 1, [&](int index) {
    if (index == jobs) return gate.open(jobs);
    const auto group = init_process_group({.environment = Environment{}});  // a job of one rank
    gate.pass();
    for (int round = 0; round < rounds; ++round) {
      SummaryWriter writer(folder / ("runs/a/" + std::to_string(round) + "/b/c"), *group, {.csv = true});
      writer.add_scalar("job", index, round);
    }
  });
  EXPECT_EQ(files_below(folder.path()).size(), std::size_t{rounds * (jobs + 1)});
  for (int round = 0; round < rounds; ++round) {
    const auto csv = contents(folder / ("runs/a/" + std::to_string(round) + "/b/c/scalars.csv"));
    EXPECT_EQ(count(csv, "wall_time"), 1) << round;
    EXPECT_EQ(count(csv, ",job,"), jobs) << round;
  }
}

TEST(SummaryWriterRanks, OthersLearnThatRankZeroCannotWrite) {
  run_ranks(2, [&](const Group& group) {
    try {
      SummaryWriter writer("/proc/none/run", *group);
      ASSERT_EQ(group->rank(), 1);
      writer.add_mean("loss", 1, 1);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_EQ(group->rank(), 0);
      EXPECT_TRUE(contains(error.what(), "rank 0 of 2: SummaryWriter: the folder \"/proc/none/run\" cannot be made"));
      group->fail(error.what());  // as ddp::run() does with an exception
    } catch (const PeerLostError& error) {
      EXPECT_EQ(group->rank(), 1);
      EXPECT_TRUE(contains(error.what(), "SummaryWriter: the folder \"/proc/none/run\" cannot be made"));
    }
  });
}

}  // namespace
}  // namespace ddp
