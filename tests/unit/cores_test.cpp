#include "base/cores.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace ddp {
namespace {

namespace fs = std::filesystem;

class Cgroup : public testing::Test {
 protected:
  Cgroup() : root_(fs::path(testing::TempDir()) / ("cgroup_" + std::to_string(getpid()))) {}
  ~Cgroup() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  const fs::path root_;
};

TEST_F(Cgroup, LeastQuotaOnTheWayUpCounts) {
  write("cpu.max", "400000 100000\n");
  write("job/cpu.max", "150000 100000\n");
  write("job/step/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_quota("0::/job/step\n", root_), 1.5);
  EXPECT_DOUBLE_EQ(cgroup_quota("0::/not/mounted/here\n", root_), 4);
}

TEST_F(Cgroup, VersionOneKeepsQuotaAndPeriodApart) {
  write("cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  write("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cgroup_quota("5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n", root_), 0.5);
}

TEST_F(Cgroup, NoFilesMeanNoQuota) {
  EXPECT_EQ(cgroup_quota("1:cpu:/\n0::/job\n", root_), std::numeric_limits<double>::infinity());
  EXPECT_EQ(cgroup_quota("", root_), std::numeric_limits<double>::infinity());
}

TEST(Cores, EveryRankHasAtLeastOneThread) {
  EXPECT_EQ(threads_per_rank(8, 2), 4);
  EXPECT_EQ(threads_per_rank(7.5, 2), 3);
  EXPECT_EQ(threads_per_rank(0.5, 4), 1);
}

}  // namespace
}  // namespace ddp
