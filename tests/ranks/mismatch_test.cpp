// Calls that differ between the ranks end in an exception on each, and never in the end of the process.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Runs `call` on 3 ranks, expects the error with these texts on each, and that the group goes on.
void expect_mismatch(const std::function<void(ProcessGroup&)>& call, const std::vector<std::string>& texts) {
  run_ranks(3, [&](const Group& group) {
    try {
      call(*group);
      ADD_FAILURE() << "no exception";
    } catch (const CallMismatchError& error) {
      EXPECT_TRUE(contains(error.what(), "the ranks make different calls"));
      for (const auto& text : texts) EXPECT_TRUE(contains(error.what(), text));
    }
    auto tensor = at::ones({5});
    group->all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, at::full({5}, 3.0)));
  });
}

TEST(CallMismatch, OfSizesNamesThemAndTheRanks) {
  expect_mismatch(
      [](ProcessGroup& group) {
        auto tensor = at::ones({group.rank() == 1 ? 1000 : 8});
        group.all_reduce(tensor);
      },
      {"all_reduce #1: ", "ranks 0, 2: all_reduce #1 (sum of Float [8])",
       "rank 1: all_reduce #1 (sum of Float [1000])"});
}

TEST(CallMismatch, OfATensorWithoutElementsIsSeen) {
  expect_mismatch(
      [](ProcessGroup& group) {
        auto tensor = at::ones({group.rank() == 1 ? 0 : 8});
        group.broadcast(tensor);
      },
      {"rank 1: broadcast #1 (Float [0], root 0)"});
}

TEST(CallMismatch, OfDtypesOfOneSizeIsSeen) {
  expect_mismatch(
      [](ProcessGroup& group) {
        auto tensor = at::ones({8}, group.rank() == 2 ? at::kInt : at::kFloat);
        group.all_reduce(tensor);
      },
      {"rank 2: all_reduce #1 (sum of Int [8])"});
}

TEST(CallMismatch, OfReductionsIsSeen) {
  expect_mismatch(
      [](ProcessGroup& group) {
        auto tensor = at::ones({8});
        group.all_reduce(tensor, group.rank() == 0 ? ReduceOp::max : ReduceOp::sum);
      },
      {"rank 0: all_reduce #1 (max of Float [8])", "ranks 1, 2: all_reduce #1 (sum of Float [8])"});
}

TEST(CallMismatch, OfRootsIsSeen) {
  expect_mismatch(
      [](ProcessGroup& group) {
        auto tensor = at::ones({8});
        group.broadcast(tensor, group.rank() == 0 ? 0 : 1);
      },
      {"rank 0: broadcast #1 (Float [8], root 0)", "ranks 1, 2: broadcast #1 (Float [8], root 1)"});
}

TEST(CallMismatch, OfOperationsIsSeen) {
  expect_mismatch(
      [](ProcessGroup& group) {
        auto tensor = at::ones({8});
        if (group.rank() == 0) group.all_reduce(tensor);
        if (group.rank() == 1) group.barrier();
        if (group.rank() == 2) group.all_gather_bytes("abc");
      },
      {"rank 0: all_reduce #1", "rank 1: barrier #1", "rank 2: all_gather_bytes #1 (3 bytes)"});
}

TEST(CallMismatch, OfOrderIsSeenInBothCalls) {
  run_ranks(2, [](const Group& group) {
    auto big = at::ones({1000}), small = at::ones({2});
    auto& first = group->rank() == 0 ? big : small;
    auto& second = group->rank() == 0 ? small : big;
    const auto one = group->all_reduce_async(first), two = group->all_reduce_async(second);
    EXPECT_THROW(two.wait(), CallMismatchError);
    EXPECT_THROW(one.wait(), CallMismatchError);
    EXPECT_THROW(one.wait(), CallMismatchError);
    EXPECT_TRUE(at::equal(big, at::ones({1000}))) << "nothing was sent";
    group->barrier();
  });
}

TEST(CallMismatch, OfSplitsNamesSenderAndReceiver) {
  run_ranks(2, [](const Group& group) {
    auto output = at::zeros({3});
    try {
      group->all_to_all(output, at::ones({3}), {.input = {1, 2}, .output = {1, 2}});
      ADD_FAILURE() << "no exception";
    } catch (const CallMismatchError& error) {
      EXPECT_TRUE(contains(error.what(), "all_to_all #1: rank 0 sends 2 rows to rank 1, which takes 1"));
    }
    group->barrier();
  });
}

TEST(CallMismatch, ReachesEachRankAsItsOwnErrorAlthoughOneThrowsItFirst) {
  const auto outcomes = observe_ranks(4, [](const Environment& environment) {
    ProcessGroupOptions options;
    options.environment = environment;
    const auto group = init_process_group(options);
    auto tensor = at::ones({environment.rank + 1});
    auto work = group->all_reduce_async(tensor);
    try {
      work.wait();
      ADD_FAILURE() << "no exception";
    } catch (const CallMismatchError& error) {
      group->fail(error.what());
    }
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.rank << ": " << outcome.output;
}

}  // namespace
}  // namespace ddp::testing
