#include "comm/shm/mapping.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "shm_child.hpp"
#include "shm_forbid.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"

namespace ddp::comm::shm {
namespace {

using ddp::testing::contains;
using ddp::testing::TempFolder;
using testing::Child;
using testing::forbid;
using testing::kKeepSize;
using testing::kPopulateWrite;
using testing::kPunchHole;
using testing::Line;
using watch::Descriptor;

constexpr std::uint64_t kMb = 1 << 20;

Descriptor copy_of(const Mapping& mapping) { return Descriptor(fcntl(mapping.file(), F_DUPFD_CLOEXEC, 0)); }

Descriptor anonymous_file(std::uint64_t bytes, int seals) {
  Descriptor file(memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

struct stat status_of(const Mapping& mapping) {
  struct stat status{};
  EXPECT_EQ(fstat(mapping.file(), &status), 0);
  return status;
}

std::uint64_t backed_bytes(const Mapping& mapping) {
  return static_cast<std::uint64_t>(status_of(mapping).st_blocks) * 512;
}

/// What the kernel tells about the mapping in lines like "Rss:    12 kB".
std::string told_about(const Mapping& mapping, const std::string& key) {
  std::array<char, 32> begin{};
  std::snprintf(begin.data(), begin.size(), "%08lx-", reinterpret_cast<unsigned long>(mapping.data()));
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(begin.data())) inside = true;
    if (inside && line.starts_with(key)) return line.substr(key.size());
  }
  return "";
}

std::uint64_t mapped_bytes(const Mapping& mapping) { return std::stoull(told_about(mapping, "Rss:")) * 1024; }

bool is_zero(const std::byte* memory, std::uint64_t bytes) {
  return std::all_of(memory, memory + bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

void limit_to(auto resource, std::uint64_t bytes) {
  const rlimit limit{bytes, bytes};
  if (setrlimit(resource, &limit) != 0) throw std::runtime_error("setrlimit");
}

std::uint64_t address_space_used() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * page_bytes();
}

TEST(Layout, CountsBeyond40Bits) {
  const Layout layout{.control_bytes = 2 * kMb, .region_bytes = std::uint64_t{1} << 40, .ranks = 16};
  EXPECT_EQ(layout.total(), (std::uint64_t{1} << 44) + 2 * kMb);
  EXPECT_TRUE(layout.sane());
}

TEST(Layout, IsNotSaneWhereTheTotalWrapsOrAPartIsMissing) {
  const std::uint64_t page = page_bytes();
  EXPECT_TRUE((Layout{page, page, 1}).sane());
  EXPECT_FALSE((Layout{0, page, 1}).sane());
  EXPECT_FALSE((Layout{page, 0, 1}).sane());
  EXPECT_FALSE((Layout{page, page, 0}).sane());
  EXPECT_FALSE((Layout{page + 8, page, 1}).sane());
  EXPECT_FALSE((Layout{page, page + 8, 1}).sane());
  EXPECT_FALSE((Layout{page, std::uint64_t{1} << 60, 16}).sane());
  EXPECT_FALSE((Layout{std::uint64_t{1} << 63, page, 1}).sane());
}

TEST(Mapping, IsEmptyAtFirstButForItsControlPart) {
  const Mapping mapping = Mapping::create(10000, 3, 64 * kMb);
  EXPECT_GE(mapping.layout().control_bytes, 10000u);
  EXPECT_EQ(mapping.layout().region_bytes, 64 * kMb);
  EXPECT_EQ(mapping.layout().ranks, 3u);
  EXPECT_GE(backed_bytes(mapping), 10000u);
  EXPECT_LE(backed_bytes(mapping), std::max(2 * kMb, page_bytes()));
  EXPECT_TRUE(is_zero(mapping.data(), 10000));
}

TEST(Mapping, ShowsTheWritesOfOneProcessToAnother) {
  Mapping mapping = Mapping::create(1, 2, 64 * kMb);
  Child child([&](Line& line) {
    const Mapping own = Mapping::open(copy_of(mapping), mapping.layout());
    EXPECT_NE(own.data(), mapping.data());
    own.region(1)[5] = std::byte{42};
    line.say("written");
    EXPECT_EQ(line.hear(), "look");
    line.say(std::to_string(std::to_integer<int>(own.region(0)[7])));
  });
  EXPECT_EQ(child->hear(), "written");
  EXPECT_EQ(mapping.region(1)[5], std::byte{42});
  mapping.region(0)[7] = std::byte{99};
  child->say("look");
  EXPECT_EQ(child->hear(), "99");
  EXPECT_EQ(child.status(), 0);
}

TEST(Mapping, ReachesBeyond4GB) {
  const Mapping mapping = Mapping::create(1, 2, 8192 * kMb);
  ASSERT_EQ(mapping.layout().region_bytes, 8192 * kMb);
  const Mapping other = Mapping::open(copy_of(mapping), mapping.layout());
  std::byte* const last = mapping.region(1) + 8192 * kMb - 1;
  *last = std::byte{3};
  EXPECT_EQ(mapping.offset_of(last), mapping.layout().total() - 1);
  EXPECT_EQ(other.data()[mapping.offset_of(last)], std::byte{3});
  EXPECT_TRUE(is_zero(other.region(0), 16));
  EXPECT_TRUE(is_zero(other.region(1), 16));
}

TEST(Mapping, KnowsWhatLiesInIt) {
  const Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  const auto total = mapping.layout().total();
  EXPECT_TRUE(mapping.contains(mapping.data(), total));
  EXPECT_FALSE(mapping.contains(mapping.data(), total + 1));
  EXPECT_FALSE(mapping.contains(mapping.data() + 1, total));
  EXPECT_FALSE(mapping.contains(mapping.data() + 1, ~std::uint64_t{0}));
  EXPECT_FALSE(mapping.contains(&total, sizeof total));
  EXPECT_THROW(mapping.offset_of(&total), std::out_of_range);
  EXPECT_THROW(mapping.offset_of(mapping.data() + total), std::out_of_range);
  EXPECT_THROW(mapping.region(1), std::out_of_range);
}

TEST(Mapping, BacksAndMapsWhatIsPopulatedAndGivesItBack) {
  Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  const auto offset = mapping.offset_of(mapping.region(0)) + 8 * kMb;
  const auto backed = backed_bytes(mapping);
  const auto mapped = mapped_bytes(mapping);
  mapping.populate(offset, 20 * kMb);  // more than one step
  EXPECT_GE(backed_bytes(mapping), backed + 20 * kMb);
  EXPECT_GE(mapped_bytes(mapping), mapped + 20 * kMb);
  std::memset(mapping.data() + offset, 1, 20 * kMb);
  mapping.release(offset + 4 * kMb, 16 * kMb);
  EXPECT_LE(backed_bytes(mapping), backed + 4 * kMb);
  EXPECT_EQ(mapping.data()[offset + 4 * kMb - 1], std::byte{1});
  EXPECT_TRUE(is_zero(mapping.data() + offset + 4 * kMb, kMb));
}

TEST(Mapping, PopulatesNothingOutsideOfIt) {
  Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  const auto total = mapping.layout().total();
  EXPECT_THROW(mapping.populate(total, page_bytes()), std::out_of_range);
  EXPECT_THROW(mapping.populate(total + page_bytes(), page_bytes()), std::out_of_range);
  EXPECT_THROW(mapping.populate(total - page_bytes(), 2 * page_bytes()), std::out_of_range);
  EXPECT_THROW(mapping.populate(page_bytes(), ~std::uint64_t{0} - page_bytes() + 1), std::out_of_range);
}

TEST(Mapping, TakesNothingWhereALimitIsTooTight) {
  const TempFolder folder;
  ddp::testing::overwrite(folder / "meminfo", "MemAvailable: 3072 kB\n");
  Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  const auto backed = backed_bytes(mapping);
  const HeadroomFiles limits{.proc = folder.path(), .cgroup = folder.path()};
  try {
    mapping.populate(mapping.layout().control_bytes, 4 * kMb, limits);
    ADD_FAILURE() << "no error";
  } catch (const Unavailable& error) {
    EXPECT_TRUE(contains(error.what(), "4 MB are needed, 3 MB are left")) << error.what();
  }
  EXPECT_EQ(backed_bytes(mapping), backed);
  mapping.populate(mapping.layout().control_bytes, 3 * kMb, limits);
  EXPECT_GE(backed_bytes(mapping), backed + 3 * kMb);
}

TEST(Mapping, SaysThatTheFileSizeLimitIsTooLowAndRaisesNoSignal) {
  Child child([](Line&) {
    limit_to(RLIMIT_FSIZE, kMb);
    Mapping::create(1, 2);
  });
  EXPECT_EQ(child->hear(), "the file-size limit (RLIMIT_FSIZE) is 1 MB, 130 MB are needed");
  EXPECT_TRUE(WIFEXITED(child.status())) << "signal " << WTERMSIG(child.status());
}

TEST(Mapping, HasSmallerRegionsUnderAFileSizeLimit) {
  Child child([](Line& line) {
    limit_to(RLIMIT_FSIZE, 300 * kMb);
    Mapping mapping = Mapping::create(1, 2);
    mapping.populate(mapping.layout().control_bytes, 2 * kMb);
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGXFSZ), 0);
    line.say(size_text(mapping.layout().region_bytes));
  });
  EXPECT_EQ(child->hear(), "128 MB");
  EXPECT_EQ(child.status(), 0);
}

TEST(Mapping, LeavesAWaitingSignalAndTheMaskAsTheyWere) {
  Child child([](Line& line) {
    sigset_t signal;
    sigemptyset(&signal);
    sigaddset(&signal, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &signal, nullptr);
    raise(SIGXFSZ);
    limit_to(RLIMIT_FSIZE, 300 * kMb);
    const Mapping mapping = Mapping::create(1, 2);
    sigset_t pending;
    sigpending(&pending);
    EXPECT_EQ(sigismember(&pending, SIGXFSZ), 1);
    line.say("done");
  });
  EXPECT_EQ(child->hear(), "done");
  EXPECT_EQ(child.status(), 0);
}

TEST(Mapping, SaysThatTheAddressSpaceIsTooSmall) {
  Child child([](Line&) {
    limit_to(RLIMIT_AS, address_space_used() + 64 * kMb);
    Mapping::create(1, 2);
  });
  const std::string text = child->hear();
  EXPECT_TRUE(contains(text, "the address-space limit (RLIMIT_AS) leaves "));
  EXPECT_TRUE(contains(text, " for shared memory, 130 MB are needed"));
  EXPECT_TRUE(WIFEXITED(child.status()));
}

TEST(Mapping, TakesAtMostHalfOfTheAddressSpaceThatIsLeft) {
  Child child([](Line& line) {
    limit_to(RLIMIT_AS, address_space_used() + 1500 * kMb);
    const Mapping mapping = Mapping::create(1, 2);
    line.say(size_text(mapping.layout().region_bytes));
  });
  EXPECT_EQ(child->hear(), "256 MB");
  EXPECT_EQ(child.status(), 0);
}

TEST(Mapping, OpensNothingForWhichTheAddressSpaceIsTooSmall) {
  const Mapping mapping = Mapping::create(1, 2, 1024 * kMb);
  Child child([&](Line&) {
    limit_to(RLIMIT_AS, address_space_used() + 100 * kMb);
    Mapping::open(copy_of(mapping), mapping.layout());
  });
  EXPECT_TRUE(contains(child->hear(), "(RLIMIT_AS) leaves "));
  EXPECT_TRUE(WIFEXITED(child.status()));
}

TEST(Mapping, CannotChangeItsSize) {
  const Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  const auto total = static_cast<off_t>(mapping.layout().total());
  EXPECT_EQ(ftruncate(mapping.file(), total / 2), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(mapping.file(), total * 2), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(mapping.file(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Mapping, HasNoNameAndIsClosedOnExec) {
  const Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  EXPECT_EQ(status_of(mapping).st_nlink, 0u);
  EXPECT_EQ(fcntl(mapping.file(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(Mapping, IsLeftOutOfCoreFiles) {
  const Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  EXPECT_TRUE(contains(told_about(mapping, "VmFlags:") + " ", " dd "));
}

TEST(Mapping, OpensOnlyWhatCreateMakes) {
  const std::uint64_t page = page_bytes();
  const Layout layout{.control_bytes = page, .region_bytes = page, .ranks = 3};
  constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(Mapping::open(anonymous_file(4 * page, seals), layout).layout(), layout);
  EXPECT_THROW(Mapping::open(anonymous_file(4 * page, F_SEAL_SHRINK), layout), Unavailable);
  EXPECT_THROW(Mapping::open(anonymous_file(4 * page - 1, seals), layout), Unavailable);
  EXPECT_THROW(Mapping::open(anonymous_file(5 * page, seals), layout), Unavailable);
  EXPECT_THROW(Mapping::open(anonymous_file(4 * page, seals), Layout{0, 4 * page, 1}), Unavailable);
  EXPECT_THROW(Mapping::open(Descriptor(), layout), Unavailable);
  EXPECT_THROW(Mapping::open(Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)), layout), Unavailable);
}

TEST(Mapping, MapsWhatIsPopulatedOnAnOldKernelToo) {
  Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  Child child([&](Line& line) {
    forbid(SYS_madvise, 2, kPopulateWrite, EINVAL);
    const auto mapped = mapped_bytes(mapping);
    mapping.populate(mapping.layout().control_bytes, 9 * kMb);
    EXPECT_GE(mapped_bytes(mapping), mapped + 9 * kMb);
    EXPECT_TRUE(is_zero(mapping.region(0), 9 * kMb));
    line.say("done");
  });
  EXPECT_EQ(child->hear(), "done");
  EXPECT_EQ(child.status(), 0);
}

TEST(Mapping, KeepsNothingOfWhatCouldNotBeAllocated) {
  Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  const auto backed = backed_bytes(mapping);
  Child child([&](Line&) {
    forbid(SYS_fallocate, 1, kKeepSize, ENOSPC);
    mapping.populate(mapping.layout().control_bytes, 9 * kMb);
  });
  EXPECT_EQ(child->hear(), "allocating 9 MB of shared memory: No space left on device");
  EXPECT_TRUE(WIFEXITED(child.status()));
  EXPECT_EQ(backed_bytes(mapping), backed);
}

TEST(Mapping, IsZeroAfterAReleaseAlsoWhereNoHoleCanBeCut) {
  Mapping mapping = Mapping::create(1, 1, 64 * kMb);
  mapping.populate(mapping.layout().control_bytes, kMb);
  std::memset(mapping.region(0), 1, kMb);
  Child child([&](Line& line) {
    forbid(SYS_fallocate, 1, kKeepSize | kPunchHole, EOPNOTSUPP);
    mapping.release(mapping.layout().control_bytes, kMb);
    line.say("done");
  });
  EXPECT_EQ(child->hear(), "done");
  EXPECT_EQ(child.status(), 0);
  EXPECT_TRUE(is_zero(mapping.region(0), kMb));
}

}  // namespace
}  // namespace ddp::comm::shm
