#pragma once
/// mapping.hpp: the one piece of memory that all ranks of a group on a host share.
///
/// It has no name, so nothing is left behind: the kernel takes it back when the last process that maps it
/// ends, however it ends. It is as large from the beginning as it may ever become, but holds only those
/// pages that were populated; so an offset means the same on all ranks, and nothing is mapped later.

#include <cstddef>
#include <cstdint>

#include "comm/shm/headroom.hpp"
#include "comm/shm/unavailable.hpp"
#include "comm/watch_socket.hpp"

namespace ddp::comm::shm {

std::uint64_t page_bytes() noexcept;

/// What lies where: a part for control, then one region for each rank.
struct Layout {
  std::uint64_t control_bytes = 0;
  std::uint64_t region_bytes = 0;
  std::uint32_t ranks = 0;

  std::uint64_t total() const { return control_bytes + region_bytes * ranks; }
  /// Whether there is something of each, in whole pages, and total() neither wraps nor exceeds a file's size.
  bool sane() const noexcept;
  bool operator==(const Layout&) const = default;
};

/// One process's view of it. Threads: any, on ranges that do not overlap.
class Mapping {
 public:
  /// Makes the memory; the control part is populated and zero, and control_bytes is rounded up. A region has
  /// the largest power of two of bytes up to `wanted_region` that the limits of file size and address space
  /// allow, but not less than 64 MiB. It can neither shrink nor grow afterwards, so nobody's access meets its end.
  /// Errors: Unavailable.
  static Mapping create(std::uint64_t control_bytes, int ranks, std::uint64_t wanted_region = std::uint64_t{32} << 30);
  /// Maps what another process made. Errors: Unavailable, also where the file is not what create() makes.
  static Mapping open(watch::Descriptor file, const Layout& layout);

  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();

  std::byte* data() const { return data_; }
  const Layout& layout() const { return layout_; }
  /// Errors: std::out_of_range
  std::byte* region(int rank) const;
  bool contains(const void* memory, std::uint64_t bytes) const;
  /// Errors: std::out_of_range where `memory` does not lie in it.
  std::uint64_t offset_of(const void* memory) const;

  /// Backs a range that holds nothing yet (in whole pages) with memory and maps it here. Where it fails the
  /// range holds nothing again. Errors: Unavailable, before anything is taken where a limit can tell.
  void populate(std::uint64_t offset, std::uint64_t bytes, const HeadroomFiles& limits = {});
  /// Gives a range of whole pages back to the system. Whoever reads there, on any rank, sees zeros.
  void release(std::uint64_t offset, std::uint64_t bytes) noexcept;

  /// For the hand-over. Lifetime: the mapping's.
  int file() const { return file_.get(); }

 private:
  Mapping(watch::Descriptor file, const Layout& layout);  // maps
  static Mapping largest(Layout layout);                  // with layout's regions, or smaller ones

  watch::Descriptor file_;  // released ranges are cut out of the file
  Layout layout_;
  std::byte* data_ = nullptr;
};

}  // namespace ddp::comm::shm
