#include "comm/group_table.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddp::comm {
namespace {

std::vector<std::vector<int>> listed_ranks() {
  std::vector<std::vector<int>> ranks;
  GroupTable::of_process().for_each([&](const GroupRecord& group) { ranks.push_back(group.ranks()); });
  return ranks;
}

TEST(GroupTable, ListsAGroupWhileItLives) {
  const auto first = listed_group({2, 4}, {0, 1, 2, 3});
  {
    const auto second = listed_group({2, 4}, {2, 3});
    EXPECT_EQ(listed_ranks(), (std::vector<std::vector<int>>{{0, 1, 2, 3}, {2, 3}}));
  }
  EXPECT_EQ(listed_ranks(), (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
}

TEST(GroupTable, CountsThoseThatHaveNoRoom) {
  std::vector<ListedGroup> groups;
  for (std::size_t i = 0; i < GroupTable::kMost + 2; ++i) groups.push_back(listed_group({0, 1}, {0}));
  EXPECT_EQ(listed_ranks().size(), GroupTable::kMost);
  EXPECT_EQ(GroupTable::of_process().left_out(), 2);
  groups.clear();
  EXPECT_EQ(listed_ranks().size(), 0U);
  EXPECT_EQ(GroupTable::of_process().left_out(), 0);
}

TEST(GroupRecord, HasABackendOnceItIsNamed) {
  GroupRecord group({0, 1}, {0});
  EXPECT_EQ(group.backend(), "");
  group.name_backend("a backend's very long name");
  EXPECT_EQ(group.backend(), "a backend's ver");
}

TEST(BucketLegend, KeepsTheLatestPlansInTheirOrder) {
  BucketLegend legend;
  const auto first_calls = [&] {
    std::vector<std::uint64_t> calls;
    legend.for_each([&](const NamedPlan& plan) { calls.push_back(plan.from_call); });
    return calls;
  };
  EXPECT_TRUE(first_calls().empty());
  legend.add({1, {{"bucket 1 of 1 (b to a)", {"b", "a"}}}});
  legend.add({7, {}});
  EXPECT_EQ(first_calls(), (std::vector<std::uint64_t>{1, 7}));
  for (std::uint64_t call = 8; call < 8 + BucketLegend::kPlans; ++call) legend.add({call, {}});
  ASSERT_EQ(first_calls().size(), BucketLegend::kPlans);
  EXPECT_EQ(first_calls().front(), 8U);
  EXPECT_EQ(first_calls().back(), 7 + BucketLegend::kPlans);
}

}  // namespace
}  // namespace ddp::comm
