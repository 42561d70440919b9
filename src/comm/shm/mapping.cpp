#include "comm/shm/mapping.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "base/write_signals.hpp"

namespace ddp::comm::shm {
namespace {

using watch::Descriptor;
using watch::error_text;

constexpr std::uint64_t kSmallestRegion = 64 << 20;  // holds a bucket of the default cap and its staging
constexpr std::uint64_t kHugePage = 2 << 20;         // regions begin where one may
constexpr std::uint64_t kStep = kHugePage;           // a signal undoes a step, so it is short beside a profiler's timer
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Younger than some of the C libraries that this compiles with.
constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL
constexpr int kPopulateWrite = 23;   // MADV_POPULATE_WRITE

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

Descriptor new_file() {
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Descriptor file(memfd_create("ddp", flags | kNoExecSeal));
  if (!file && errno == EINVAL) file = Descriptor(memfd_create("ddp", flags));  // before Linux 6.3
  if (!file) throw Unavailable("memfd_create: " + error_text(errno));
  return file;
}

void resize(const Descriptor& file, std::uint64_t bytes) {
  const WriteSignalsHeld no_signal;
  int result = 0;
  do {
    result = ftruncate(file.get(), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  const int error = errno;
  rlimit limit{};
  if (error == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    throw Unavailable("the file-size limit (RLIMIT_FSIZE) is " + size_text(limit.rlim_cur) + ", " + size_text(bytes) +
                      " are needed");
  }
  throw Unavailable("ftruncate to " + size_text(bytes) + ": " + error_text(error));
}

/// What RLIMIT_AS still allows this process to map; RLIM_INFINITY where there is no limit.
std::uint64_t address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return RLIM_INFINITY;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, pages * page_bytes());
}

void require_address_space(std::uint64_t bytes, std::uint64_t left) {
  if (left == RLIM_INFINITY || bytes <= left) return;
  throw Unavailable("the address-space limit (RLIMIT_AS) leaves " + size_text(left) + " for shared memory, " +
                    size_text(bytes) + " are needed");
}

std::byte* map(const Descriptor& file, std::uint64_t bytes) {
  void* window = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (window == MAP_FAILED) {
    const int error = errno;
    require_address_space(bytes, address_space_left());
    throw Unavailable(size_text(bytes) + " of address space: " + error_text(error));
  }
  // Both are wishes: a core file of gigabytes helps nobody, and few systems have huge pages for shared memory.
  static_cast<void>(madvise(window, bytes, MADV_DONTDUMP));
  static_cast<void>(madvise(window, bytes, MADV_HUGEPAGE));
  return static_cast<std::byte*>(window);
}

/// Calls `step(offset, bytes)`, which sets errno, for pieces of the range, each until no signal interrupts it.
template <class Step>
int in_steps(std::uint64_t offset, std::uint64_t bytes, Step step) {
  for (const auto end = offset + bytes; offset < end; offset += kStep) {
    while (step(offset, std::min(kStep, end - offset)) != 0) {
      if (errno != EINTR) return errno;
    }
  }
  return 0;
}

/// Maps pages that are there already.
void touch(std::byte* begin, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += page_bytes()) {
    std::atomic_ref(reinterpret_cast<unsigned char&>(begin[at])).fetch_or(0, std::memory_order_relaxed);
  }
}

}  // namespace

std::uint64_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

bool Layout::sane() const noexcept {
  constexpr std::uint64_t most = std::uint64_t{1} << 62;
  if (control_bytes == 0 || region_bytes == 0 || ranks == 0) return false;
  if (control_bytes % page_bytes() != 0 || region_bytes % page_bytes() != 0) return false;
  return control_bytes < most && region_bytes <= (most - control_bytes) / ranks;
}

Mapping Mapping::create(std::uint64_t control_bytes, int ranks, std::uint64_t wanted_region) {
  if (ranks < 1) throw std::logic_error("shared memory for no rank");
  control_bytes = std::max<std::uint64_t>(control_bytes, 1);
  Mapping mapping = largest({.control_bytes = rounded_up(control_bytes, std::max(kHugePage, page_bytes())),
                             .region_bytes = std::bit_floor(std::max(wanted_region, page_bytes())),
                             .ranks = static_cast<std::uint32_t>(ranks)});
  mapping.populate(0, rounded_up(control_bytes, page_bytes()));
  return mapping;
}

Mapping Mapping::largest(Layout layout) {
  const auto smallest = std::min(kSmallestRegion, layout.region_bytes);
  const auto left = address_space_left();
  for (;; layout.region_bytes /= 2) {
    try {
      if (!layout.sane()) throw Unavailable("regions of " + size_text(layout.region_bytes) + " are too large");
      require_address_space(layout.total(), left == RLIM_INFINITY ? left : left / 2);  // the program needs some too
      Descriptor file = new_file();
      resize(file, layout.total());
      if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) throw Unavailable("memfd seals: " + error_text(errno));
      return Mapping(std::move(file), layout);
    } catch (const Unavailable&) {
      if (layout.region_bytes / 2 < smallest) throw;
    }
  }
}

Mapping Mapping::open(Descriptor file, const Layout& layout) {
  struct stat status{};
  if (fstat(file.get(), &status) != 0) throw Unavailable("fstat of the shared memory: " + error_text(errno));
  if (!layout.sane() || static_cast<std::uint64_t>(status.st_size) != layout.total()) {
    throw Unavailable("rank 0's memory has another size (" + size_text(static_cast<std::uint64_t>(status.st_size)) +
                      ") than it says");
  }
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    throw Unavailable("rank 0's memory is not sealed against a change of size");
  return Mapping(std::move(file), layout);
}

Mapping::Mapping(Descriptor file, const Layout& layout)
    : file_(std::move(file)), layout_(layout), data_(map(file_, layout.total())) {}

Mapping::Mapping(Mapping&& other) noexcept
    : file_(std::move(other.file_)), layout_(other.layout_), data_(std::exchange(other.data_, nullptr)) {}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, layout_.total());
}

std::byte* Mapping::region(int rank) const {
  if (rank < 0 || static_cast<std::uint32_t>(rank) >= layout_.ranks) throw std::out_of_range("no region of that rank");
  return data_ + layout_.control_bytes + static_cast<std::uint64_t>(rank) * layout_.region_bytes;
}

bool Mapping::contains(const void* memory, std::uint64_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  const auto begin = reinterpret_cast<std::uintptr_t>(data_);
  return at >= begin && at - begin <= layout_.total() && bytes <= layout_.total() - (at - begin);
}

std::uint64_t Mapping::offset_of(const void* memory) const {
  if (!contains(memory, 1)) throw std::out_of_range("memory outside the shared memory");
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(memory) - data_);
}

void Mapping::populate(std::uint64_t offset, std::uint64_t bytes, const HeadroomFiles& limits) {
  if (offset > layout_.total() || bytes > layout_.total() - offset)
    throw std::out_of_range("outside the shared memory");
  require_headroom(bytes, limits);
  const WriteSignalsHeld no_signal;
  // Populating first lets huge pages be used where there are any; allocating then is what guarantees that
  // later accesses cannot fault, and costs little where the pages are there.
  const int populated = in_steps(offset, bytes, [this](std::uint64_t at, std::uint64_t length) {
    return madvise(data_ + at, length, kPopulateWrite);
  });
  const int error = in_steps(offset, bytes, [this](std::uint64_t at, std::uint64_t length) {
    return fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at), static_cast<off_t>(length));
  });
  if (error != 0) {
    release(offset, bytes);
    throw Unavailable("allocating " + size_text(bytes) + " of shared memory: " + error_text(error));
  }
  if (populated != 0) touch(data_ + offset, bytes);
}

void Mapping::release(std::uint64_t offset, std::uint64_t bytes) noexcept {
  constexpr int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  int result = 0;
  do {
    result = fallocate(file_.get(), punch, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  // Where it is forbidden the memory stays, but it is zero as promised.
  if (result != 0) std::memset(data_ + offset, 0, bytes);
}

}  // namespace ddp::comm::shm
