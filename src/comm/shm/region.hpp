#pragma once
/// region.hpp: which parts of one rank's region are taken. Knows offsets alone, no memory.

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace ddp::comm::shm {

/// Hands out ranges of [begin, begin + bytes) in whole granules. Takes the smallest free range that
/// suffices, of equal ones the first, so that large ranges stay whole; free neighbours become one.
/// Every call takes O(log n) for n ranges. Threads: any.
class Region {
 public:
  /// `begin` and `bytes` are multiples of `granule`.
  Region(std::uint64_t begin, std::uint64_t bytes, std::uint64_t granule);

  /// The offset of a range of at least `bytes` (of one granule for 0); none where no free range is as long.
  std::optional<std::uint64_t> take(std::uint64_t bytes);
  /// Errors: std::logic_error where no range that is taken begins there.
  void give_back(std::uint64_t offset);

  /// Of the taken range that begins there, in whole granules. Errors: as give_back().
  std::uint64_t size_of(std::uint64_t offset) const;
  std::uint64_t taken_bytes() const;

 private:
  using Ranges = std::map<std::uint64_t, std::uint64_t>;  // offset -> bytes

  Ranges::const_iterator find(std::uint64_t offset) const;
  void add_free(std::uint64_t offset, std::uint64_t bytes);
  void remove_free(Ranges::iterator range);

  const std::uint64_t granule_;
  mutable std::mutex mutex_;
  Ranges taken_;
  Ranges free_;                                              // no two of them touch
  std::set<std::pair<std::uint64_t, std::uint64_t>> sizes_;  // (bytes, offset) of each in free_
  std::uint64_t taken_bytes_ = 0;
};

}  // namespace ddp::comm::shm
