#include "comm/slurm_lists.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace ddp::comm {
namespace {

TEST(SlurmLists, TheFirstHostIsTheFirstNameOfTheExpandedList) {
  const std::map<std::string, std::string> lists{
      {"node7", "node7"},
      {"a,b", "a"},
      {"node[003-005,9]", "node003"},
      {"node[9,003-005]", "node9"},
      {"rack[1-2]node[07-08]", "rack1node07"},
      {"gpu-[12].cluster.org,x", "gpu-12.cluster.org"},
  };
  for (const auto& [list, host] : lists) EXPECT_EQ(first_host(list), host) << list;
  for (const char* list : {"", ",", "node[", "node[]", "node[-3]", "node[a]", "node]", "a b", "node[1x]"}) {
    EXPECT_EQ(first_host(list), std::nullopt) << list;
  }
}

TEST(SlurmLists, RepeatedCountsAreCountedNodeByNode) {
  const std::vector<int> tasks{2, 2, 2, 1};
  for (int node = 0; node < 4; ++node) EXPECT_EQ(tasks_on_node("2(x3),1", node), tasks[static_cast<std::size_t>(node)]);
  EXPECT_EQ(tasks_on_node("2(x3),1", 4), std::nullopt);
  EXPECT_EQ(tasks_on_node("2(x3),1", -1), std::nullopt);
  EXPECT_EQ(tasks_on_node("8", 0), 8);
  for (const char* list : {"", "0", "2(x", "2(x0)", "2(3)", "2(x3", "2,", "a", "99999999999", "-1"}) {
    EXPECT_EQ(tasks_on_node(list, 0), std::nullopt) << list;
  }
}

}  // namespace
}  // namespace ddp::comm
