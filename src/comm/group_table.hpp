#pragma once
/// group_table.hpp: the groups of this process that live, for whoever is to tell of all of them, signal handlers too.

#include <array>
#include <atomic>
#include <memory>

#include "base/pinned_slot.hpp"
#include "comm/group_record.hpp"

namespace ddp::comm {

/// Threads: all members are safe, for_each() also in a signal's handler.
class GroupTable {
 public:
  static constexpr std::size_t kMost = 64;  ///< further groups are not listed

  /// The process's.
  static GroupTable& of_process() noexcept;

  void add(GroupRecord& group) noexcept;
  /// Only where it says true the record may be destroyed; else somebody may read it for ever.
  bool remove(GroupRecord& group) noexcept;
  /// How many are not listed.
  int left_out() const noexcept { return left_out_; }

  template <class Look>
  void for_each(Look look) const {
    for (const auto& slot : slots_) slot.read(look);
  }

 private:
  std::array<PinnedSlot<GroupRecord>, kMost> slots_;
  std::atomic<int> left_out_{0};
};

struct Unlist {
  void operator()(GroupRecord* group) const noexcept;
};
/// A record that is in the table while it lives.
using ListedGroup = std::unique_ptr<GroupRecord, Unlist>;
ListedGroup listed_group(Origin origin, const std::vector<int>& ranks);

}  // namespace ddp::comm
