#include "comm/shm/region.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>

namespace ddp::comm::shm {

Region::Region(std::uint64_t begin, std::uint64_t bytes, std::uint64_t granule) : granule_(granule) {
  if (bytes > 0) add_free(begin, bytes);
}

std::optional<std::uint64_t> Region::take(std::uint64_t bytes) {
  if (bytes > std::numeric_limits<std::uint64_t>::max() - granule_) return std::nullopt;  // rounding up would wrap
  const auto wanted = (std::max<std::uint64_t>(bytes, 1) + granule_ - 1) / granule_ * granule_;
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.lower_bound({wanted, 0});
  if (found == sizes_.end()) return std::nullopt;
  const auto [size, offset] = *found;
  remove_free(free_.find(offset));
  if (size > wanted) add_free(offset + wanted, size - wanted);
  taken_.emplace(offset, wanted);
  taken_bytes_ += wanted;
  return offset;
}

void Region::give_back(std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  const auto range = find(offset);
  auto begin = range->first;
  auto bytes = range->second;
  taken_.erase(range);
  taken_bytes_ -= bytes;
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      bytes += before->second;
      remove_free(before);
    }
  }
  if (after != free_.end() && begin + bytes == after->first) {
    bytes += after->second;
    remove_free(after);
  }
  add_free(begin, bytes);
}

std::uint64_t Region::size_of(std::uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  return find(offset)->second;
}

std::uint64_t Region::taken_bytes() const {
  const std::lock_guard lock(mutex_);
  return taken_bytes_;
}

Region::Ranges::const_iterator Region::find(std::uint64_t offset) const {
  const auto range = taken_.find(offset);
  if (range == taken_.end()) throw std::logic_error("no memory was taken at offset " + std::to_string(offset));
  return range;
}

void Region::add_free(std::uint64_t offset, std::uint64_t bytes) {
  free_.emplace(offset, bytes);
  sizes_.emplace(bytes, offset);
}

void Region::remove_free(Ranges::iterator range) {
  sizes_.erase({range->second, range->first});
  free_.erase(range);
}

}  // namespace ddp::comm::shm
