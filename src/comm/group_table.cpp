#include "comm/group_table.hpp"

namespace ddp::comm {
namespace {

// A dump's part for one group is written within milliseconds, or within seconds on a slow disk.
constexpr std::chrono::seconds kReading{2};

constinit GroupTable table;

}  // namespace

GroupTable& GroupTable::of_process() noexcept { return table; }

void GroupTable::add(GroupRecord& group) noexcept {
  for (auto& slot : slots_)
    if (slot.put(&group)) return;
  ++left_out_;
}

bool GroupTable::remove(GroupRecord& group) noexcept {
  for (auto& slot : slots_)
    if (slot.holds(&group)) return slot.take(kReading).is_unread;
  --left_out_;
  return true;
}

void Unlist::operator()(GroupRecord* group) const noexcept {
  if (GroupTable::of_process().remove(*group)) delete group;
}

ListedGroup listed_group(Origin origin, const std::vector<int>& ranks) {
  ListedGroup group(new GroupRecord(origin, ranks));
  GroupTable::of_process().add(*group);
  return group;
}

}  // namespace ddp::comm
