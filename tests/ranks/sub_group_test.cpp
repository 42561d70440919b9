// Groups of some of a group's ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(SubGroup, HasItsRanksInAscendingOrderAndIsNullElsewhere) {
  run_ranks(4, [](const Group& group) {
    const auto part = group->new_group({3, 1});
    ASSERT_EQ(part != nullptr, group->rank() % 2 == 1);
    if (!part) return;
    EXPECT_EQ(part->size(), 2);
    EXPECT_EQ(part->rank(), group->rank() / 2);
    EXPECT_EQ(part->origin().rank, group->rank());
    auto tensor = at::full({3}, group->rank());
    part->all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, at::full({3}, 4)));
    EXPECT_EQ(part->broadcast_bytes(std::to_string(group->rank()), 1), "3");
    part->shutdown();
  });
}

TEST(SubGroup, SeveralAndTheWholeWorkBesideEachOther) {
  run_ranks(4, [](const Group& group) {
    const auto low = group->new_group({0, 1}), high = group->new_group({2, 3}), alone = group->new_group({2});
    const auto& mine = group->rank() < 2 ? low : high;
    ASSERT_TRUE(mine);
    EXPECT_EQ(alone != nullptr, group->rank() == 2);
    for (int i = 0; i < 20; ++i) {
      auto part = at::full({10}, group->rank()), whole = at::full({10}, group->rank());
      const auto first = mine->all_reduce_async(part), second = group->all_reduce_async(whole);
      second.wait();
      first.wait();
      EXPECT_TRUE(at::equal(part, at::full({10}, group->rank() < 2 ? 1 : 5)));
      EXPECT_TRUE(at::equal(whole, at::full({10}, 6)));
    }
    if (alone) {
      EXPECT_EQ(alone->all_gather_bytes("x").size(), 1U);
    }
  });
}

TEST(SubGroup, MayBePartOfASubGroup) {
  run_ranks(4, [](const Group& group) {
    const auto part = group->new_group({1, 2, 3});
    if (!part) return;
    const auto inner = part->new_group({1, 2});
    ASSERT_EQ(inner != nullptr, group->rank() >= 2);
    if (!inner) return;
    EXPECT_EQ(inner->gather_bytes(std::to_string(inner->origin().rank)).size(), inner->rank() == 0 ? 2U : 0U);
    auto tensor = at::ones({group->rank()});
    try {
      inner->all_reduce(tensor);
      ADD_FAILURE() << "no exception";
    } catch (const CallMismatchError& error) {
      EXPECT_TRUE(contains(error.what(), "rank " + std::to_string(group->rank()) + " of 4"));
      EXPECT_TRUE(contains(error.what(), "rank 2: all_reduce #2 (sum of Float [2])"));
      EXPECT_TRUE(contains(error.what(), "rank 3: all_reduce #2 (sum of Float [3])"));
    }
  });
}

TEST(SubGroup, InheritsTheTimeoutOrHasItsOwn) {
  run_ranks(2, [](const Group& group) {
    EXPECT_EQ(group->new_group({0, 1})->timeout(), group->timeout());
    EXPECT_EQ(group->new_group({0, 1}, {.timeout = std::chrono::seconds(7)})->timeout(), std::chrono::seconds(7));
  });
}

TEST(SubGroup, ATimeoutNamesRanksOfTheWorld) {
  const Gate over;
  run_ranks(3, [&](const Group& group) {
    const auto part = group->new_group({1, 2}, {.timeout = std::chrono::milliseconds(400)});
    if (group->rank() == 2) over.pass();
    if (group->rank() != 1) return;
    try {
      part->monitored_barrier();
      ADD_FAILURE() << "no exception";
    } catch (const TimeoutError& error) {
      EXPECT_TRUE(contains(error.what(), "rank 1 of 3: monitored_barrier #1: rank 2 did not come within 0.4 s"));
      EXPECT_TRUE(contains(error.what(), "rank 1: completed no call yet, now in monitored_barrier #1"));
      EXPECT_TRUE(contains(error.what(), "rank 2: completed no call yet, now not in a collective"));
    }
    over.open();
  });
}

TEST(SubGroup, GoesOnAfterATimeoutInTheWhole) {
  const Gate timed_out;
  run_ranks(3, [&](const Group& group) {
    const auto part = group->new_group({0, 1});
    if (group->rank() == 0) {
      auto tensor = at::ones({3});
      EXPECT_THROW(group->all_reduce(tensor, ReduceOp::sum, {.timeout = std::chrono::milliseconds(300)}), TimeoutError);
      EXPECT_THROW(group->check(), TimeoutError);
      timed_out.open(2);
    } else {
      timed_out.pass();
      auto tensor = at::ones({3});
      // The first of these calls is the one that rank 0 has entered: it completes where the word of its end comes
      // later.
      EXPECT_THROW(
          {
            group->all_reduce(tensor);
            group->all_reduce(tensor);
          },
          CommError);
    }
    if (!part) return;
    auto tensor = at::ones({3});
    part->all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, at::full({3}, 2.0)));
    part->monitored_barrier();
    part->shutdown();
  });
}

// Rank 2 goes as `end` says while rank 1 needs it in their group of two.
void expect_lost(const std::function<void(const Group& whole, const Group& part)>& end, const std::string& text) {
  const auto outcomes = observe_ranks(3, [&](const Environment& environment) {
    ProcessGroupOptions options;
    options.environment = environment;
    const auto group = init_process_group(options);
    const auto part = group->new_group({1, 2});
    if (group->rank() == 2) return end(group, part);
    if (group->rank() == 0) return;
    try {
      part->barrier();
      part->barrier();
      ADD_FAILURE() << "no exception";
    } catch (const PeerLostError& error) {
      EXPECT_EQ(error.peer(), 2) << error.what();
      EXPECT_TRUE(contains(error.what(), text));
    }
  });
  EXPECT_TRUE(outcomes[1].succeeded()) << outcomes[1].output;
}

TEST(SubGroup, ARankThatDiesEndsItsWaits) {
  expect_lost(
      [](const Group&, const Group& part) {
        part->barrier();
        ::_exit(0);
      },
      "barrier #2: rank 2 died");
}

TEST(SubGroup, ARankThatFailsInTheWholeEndsItsWaits) {
  expect_lost(
      [](const Group& whole, const Group& part) {
        part->barrier();
        whole->fail("the data is bad");
      },
      "barrier #2: rank 2 failed: the data is bad");
}

TEST(SubGroup, ARankThatLeavesEndsItsWaits) {
  expect_lost(
      [](const Group&, const Group& part) {
        part->barrier();
        part->shutdown();
      },
      "barrier #2: rank 2 left the group after call #1");
}

TEST(SubGroup, WrongRanksAreALogicErrorAndDifferentOnesAreNamed) {
  run_ranks(2, [](const Group& group) {
    EXPECT_THROW(group->new_group({}), std::logic_error);
    EXPECT_THROW(group->new_group({0, 2}), std::logic_error);
    EXPECT_THROW(group->new_group({1, 1}), std::logic_error);
    try {
      group->new_group(group->rank() == 0 ? std::vector<int>{0} : std::vector<int>{0, 1});
      ADD_FAILURE() << "no exception";
    } catch (const CallMismatchError& error) {
      EXPECT_TRUE(contains(error.what(), "rank 0 asks for ranks 0, rank 1 for ranks 0, 1"));
    }
    group->barrier();
  });
}

TEST(SubGroup, OfAWorldOfOneIsAlone) {
  ProcessGroupOptions options;
  options.environment = Environment{};
  const auto group = init_process_group(options)->new_group({0});
  auto tensor = at::ones({3});
  group->all_reduce(tensor);
  EXPECT_TRUE(at::equal(tensor, at::ones({3})));
}

}  // namespace
}  // namespace ddp::testing
