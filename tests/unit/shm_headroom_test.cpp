#include "comm/shm/headroom.hpp"

#include <gtest/gtest.h>

#include "comm/shm/unavailable.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"

namespace ddp::comm::shm {
namespace {

using ddp::testing::expect_contains;
using ddp::testing::overwrite;
using ddp::testing::TempFolder;

constexpr std::uint64_t kMb = 1 << 20;
constexpr std::uint64_t kKept = 8 * kMb;  // what a cgroup's limit keeps back

std::string mb(std::uint64_t count) { return std::to_string(count * kMb) + "\n"; }

/// A /proc and a /sys/fs/cgroup of one's own; a machine with 1000 MB available.
class Machine {
 public:
  explicit Machine(const std::string& groups) {
    write("proc/meminfo", "MemTotal:       9999999 kB\nMemAvailable:   1024000 kB\n");
    write("proc/self/cgroup", groups);
  }

  void write(const std::string& file, const std::string& text) const {
    const auto path = folder_ / file;
    std::filesystem::create_directories(path.parent_path());
    overwrite(path, text);
  }
  void version2(const std::string& group, const std::string& limit, const std::string& usage,
                const std::string& statistics = "") const {
    write("cgroup/" + group + "/memory.max", limit);
    write("cgroup/" + group + "/memory.current", usage);
    write("cgroup/" + group + "/memory.stat", statistics);
  }
  void version1(const std::string& group, const std::string& limit, const std::string& usage,
                const std::string& statistics = "") const {
    write("cgroup/memory/" + group + "/memory.limit_in_bytes", limit);
    write("cgroup/memory/" + group + "/memory.usage_in_bytes", usage);
    write("cgroup/memory/" + group + "/memory.stat", statistics);
  }

  HeadroomFiles files() const { return {.proc = folder_ / "proc", .cgroup = folder_ / "cgroup"}; }
  Headroom left() const { return headroom(files()); }
  std::string refusal(std::uint64_t bytes) const {
    try {
      require_headroom(bytes, files());
    } catch (const Unavailable& error) {
      return error.what();
    }
    return "none";
  }

 private:
  TempFolder folder_;
};

TEST(Headroom, IsWhatTheMachineHasAvailableWhereNoCgroupLimitsIt) {
  const Machine machine("0::/\n");
  EXPECT_EQ(machine.left().bytes, 1000 * kMb);
  EXPECT_EQ(machine.refusal(1000 * kMb), "none");
  EXPECT_EQ(machine.refusal(1001 * kMb),
            "1001 MB are needed, 1000 MB are left within the machine's memory (MemAvailable)");
}

TEST(Headroom, IsUnlimitedWhereNothingCanBeRead) {
  const TempFolder empty;
  EXPECT_EQ(headroom({.proc = empty / "a", .cgroup = empty / "b"}).bytes, std::numeric_limits<std::uint64_t>::max());
}

TEST(Headroom, IsWhatVersion2sLimitLeaves) {
  const Machine machine("0::/job\n");
  machine.version2("job", mb(300), mb(100));
  EXPECT_EQ(machine.left().bytes, 200 * kMb - kKept);
  EXPECT_EQ(machine.refusal(193 * kMb),
            "193 MB are needed, 192 MB are left within the memory limit of cgroup /job (memory.max)");
}

TEST(Headroom, CountsVersion2sFilePagesAsFree) {
  const Machine machine("0::/job\n");
  machine.version2(
      "job", mb(300), mb(100),
      "inactive_file_x 999999999\nanon 77\ninactive_file " + mb(40) + "active_file " + mb(20) + "file 9\n");
  EXPECT_EQ(machine.left().bytes, 260 * kMb - kKept);
}

TEST(Headroom, IsNotWidenedByALimitThatIsFarAway) {
  const Machine machine("0::/job\n");
  machine.version2("job", "max\n", mb(100));
  EXPECT_EQ(machine.left().bytes, 1000 * kMb);
  machine.version2("job", mb(5000), mb(100));  // more than there is
  EXPECT_EQ(machine.left().bytes, 1000 * kMb);
}

TEST(Headroom, IsNothingBeyondALimit) {
  const Machine machine("0::/job\n");
  machine.version2("job", mb(300), mb(310), "inactive_file " + mb(1000));
  EXPECT_EQ(machine.left().bytes, 300 * kMb - kKept);  // never more than the limit
  machine.version2("job", mb(300), mb(310));
  EXPECT_EQ(machine.left().bytes, 0u);
  EXPECT_EQ(machine.refusal(1),
            "1 bytes are needed, 0 bytes are left within the memory limit of cgroup /job (memory.max)");
}

TEST(Headroom, IsTheTightestOfAllAncestors) {
  const Machine machine("0::/a/b/c\n");
  machine.version2("a/b/c", mb(900), mb(1));
  machine.version2("a/b", "max\n", mb(1));
  machine.version2("a", mb(120), mb(10));
  EXPECT_EQ(machine.left().bytes, 110 * kMb - kKept);
  expect_contains(machine.left().limit, {"cgroup /a (memory.max)"});
  machine.version2("", mb(60), mb(10));  // a container's own, mounted as the root
  EXPECT_EQ(machine.left().bytes, 50 * kMb - kKept);
  expect_contains(machine.left().limit, {"cgroup / (memory.max)"});
}

TEST(Headroom, FindsAContainersOwnCgroupAtTheMountsRoot) {
  for (const char* group : {"0::/host/path/that/is/not/here\n", "0::/../../elsewhere\n"}) {
    const Machine machine(group);
    machine.version2("", mb(60), mb(10));
    EXPECT_EQ(machine.left().bytes, 50 * kMb - kKept) << group;
  }
}

TEST(Headroom, DoesNotLookOutsideTheMount) {
  const Machine machine("0::/../proc\n");
  machine.version2("../proc", mb(60), mb(10));
  EXPECT_EQ(machine.left().bytes, 1000 * kMb);
}

TEST(Headroom, IsWhatVersion1sLimitLeaves) {
  for (const char* controllers : {"memory", "hugetlb,memory", "memory,pids"}) {
    const Machine machine("9:name=systemd:/\n4:" + std::string(controllers) + ":/a/b\n1:cpu:/\n0::/\n");
    machine.version1("a/b", "9223372036854771712\n", mb(100));
    machine.version1("a", mb(300), mb(100),
                     "inactive_file 1\ntotal_inactive_file " + mb(30) + "total_active_file " + mb(5));
    EXPECT_EQ(machine.left().bytes, 235 * kMb - kKept) << controllers;
    EXPECT_EQ(machine.refusal(228 * kMb),
              "228 MB are needed, 227 MB are left within the memory limit of cgroup /a (memory.limit_in_bytes)");
  }
}

TEST(Headroom, HeedsOnlyVersion1sMemoryController) {
  const Machine machine("4:memoryless,cpu:/a\n3:cpuset:/a\n");
  machine.version1("a", mb(300), mb(100));
  EXPECT_EQ(machine.left().bytes, 1000 * kMb);
}

TEST(Headroom, FindsVersion2BesideVersion1) {
  const Machine machine("4:cpu:/\n0::/a\n");
  machine.version2("unified/a", mb(60), mb(10));
  EXPECT_EQ(machine.left().bytes, 50 * kMb - kKept);
}

TEST(Headroom, IsNotMisledByGarbage) {
  const Machine machine("\n:\n::\nx\n0::\n4:memory:\n0::/a\n");
  machine.version2("a", "-5\n", mb(10));
  EXPECT_EQ(machine.left().bytes, 1000 * kMb);
  machine.version2("a", "", "");
  EXPECT_EQ(machine.left().bytes, 1000 * kMb);
  machine.version2("a", mb(60), mb(10), "inactive_file\ninactive_file x\n");
  EXPECT_EQ(machine.left().bytes, 50 * kMb - kKept);
}

TEST(Headroom, OfThisMachineIsWithinItsMemory) {
  const auto left = headroom();
  EXPECT_GT(left.bytes, 0u);
  EXPECT_LT(left.bytes, std::uint64_t{1} << 50) << left.limit;
}

TEST(SizeText, NamesTheUnit) {
  EXPECT_EQ(size_text(0), "0 bytes");
  EXPECT_EQ(size_text(1536), "1.5 kB");
  EXPECT_EQ(size_text(20 * kMb), "20 MB");
  EXPECT_EQ(size_text(std::uint64_t{1} << 40), "1 TB");
  EXPECT_EQ(size_text(std::uint64_t{1} << 62), "4194304 TB");
}

}  // namespace
}  // namespace ddp::comm::shm
