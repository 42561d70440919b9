#include "ddp/seed.hpp"

#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/types.h>

#include "support/ranks.hpp"

namespace ddp {
namespace {

at::Tensor dropout_mask() { return torch::nn::functional::dropout(torch::ones({1000})) != 0; }

TEST(SeedAll, GivesRanksDifferentNumbersAndRepeatsThem) {  // R49
  ::ddp::testing::run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    seed_all(42, *group);
    const auto mask = dropout_mask();
    EXPECT_FALSE(dropout_mask().equal(mask));
    const auto all = group->all_gather(mask);
    EXPECT_FALSE(all[0].equal(all[1])) << "both ranks drop the same elements";
    seed_all(42, *group);
    EXPECT_TRUE(dropout_mask().equal(mask));
  });
}

TEST(SeedAll, SeedsRankZeroWithTheSeedItself) {
  ::ddp::testing::run_ranks(1, [](const std::shared_ptr<ProcessGroup>& group) {
    seed_all(7, *group);
    const auto number = torch::rand({1});
    torch::manual_seed(7);
    EXPECT_TRUE(torch::rand({1}).equal(number));
  });
}

}  // namespace
}  // namespace ddp
