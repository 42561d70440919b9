// send and recv.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(Message, ArrivesInEveryDtypeSizeAndLayout) {
  run_ranks(2, [](const Group& group) {
    for (const auto dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                             at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
      for (const std::int64_t rows : {0, 1, 6}) {
        const auto values = at::arange(rows * 4).view({rows, 4}).to(dtype);
        const auto transposed = values.t().contiguous().t();
        if (group->rank() == 0) {
          group->send(values, 1);
          group->send(transposed, 1);
          continue;
        }
        auto dense = at::zeros({rows, 4}, dtype), strided = at::zeros({rows, 8}, dtype).slice(1, 0, 8, 2);
        group->recv(strided, 0);
        group->recv(dense, 0);
        EXPECT_TRUE(at::equal(dense, values) && at::equal(strided, values)) << dtype << ' ' << rows;
      }
    }
  });
}

TEST(Message, GoesRoundARingAndBothWaysAtOnce) {
  run_ranks(3, [](const Group& group) {
    const int next = (group->rank() + 1) % 3, before = (group->rank() + 2) % 3;
    for (int round = 0; round < 20; ++round) {
      auto from_before = at::zeros({100}), from_next = at::zeros({50});
      const std::vector<Work> works{group->send_async(at::full({100}, 1.0 * group->rank()), next),
                                    group->send_async(at::full({50}, 10.0 + group->rank()), before),
                                    group->recv_async(from_before, before), group->recv_async(from_next, next)};
      for (const auto& work : works) work.wait();
      EXPECT_TRUE(at::equal(from_before, at::full({100}, 1.0 * before)));
      EXPECT_TRUE(at::equal(from_next, at::full({50}, 10.0 + next)));
    }
    group->barrier();
  });
}

TEST(Message, SeveralUnderWayArriveInTheOrderOfTheCalls) {
  run_ranks(2, [](const Group& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 30; ++i) {
      tensors.push_back(at::full({4}, group->rank() == 0 ? i : -1));
      works.push_back(group->rank() == 0 ? group->send_async(tensors.back(), 1) : group->recv_async(tensors.back(), 0));
    }
    for (const auto& work : works) work.wait();
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(at::equal(tensors[static_cast<std::size_t>(i)], at::full({4}, i)));
  });
}

TEST(Message, ByteStringsHaveAnyLength) {
  run_ranks(2, [](const Group& group) {
    for (const std::size_t length : {0, 1, 100000}) {
      const std::string text(length, 'b');
      if (group->rank() == 1) group->send_bytes(text, 0);
      if (group->rank() == 0) {
        EXPECT_EQ(group->recv_bytes(1), text);
      }
    }
  });
}

TEST(Message, OfAnotherSizeEndsInAnErrorOnBothSidesAndTheGroupGoesOn) {
  run_ranks(3, [](const Group& group) {
    auto tensor = at::ones({group->rank() == 1 ? 4 : 3});
    if (group->rank() < 2) {
      try {
        group->rank() == 0 ? group->send(tensor, 1) : group->recv(tensor, 0);
        ADD_FAILURE() << "no exception";
      } catch (const CallMismatchError& error) {
        EXPECT_TRUE(contains(error.what(), "rank 0: message (Float [3])"));
        EXPECT_TRUE(contains(error.what(), "rank 1: message (Float [4])"));
      }
    }
    group->barrier();
  });
}

TEST(Message, NeverSentEndsWhenItsSenderDies) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    ProcessGroupOptions options;
    options.environment = environment;
    const auto group = init_process_group(options);
    if (group->rank() == 1) ::_exit(0);
    auto tensor = at::ones({3});
    try {
      group->recv(tensor, 1);
      ADD_FAILURE() << "no exception";
    } catch (const PeerLostError& error) {
      EXPECT_EQ(error.peer(), 1) << error.what();
      EXPECT_TRUE(contains(error.what(), "recv from rank 1, message 1: rank 1 died"));
    }
  });
  EXPECT_TRUE(outcomes[0].succeeded()) << outcomes[0].ending() << '\n' << outcomes[0].output;
}

TEST(Message, NeverSentEndsWhenItsSenderLeaves) {
  run_ranks(3, [&](const Group& group) {
    if (group->rank() == 2) return;  // leaves too, and is not to blame
    if (group->rank() == 1) return group->shutdown();
    auto tensor = at::ones({3});
    try {
      group->recv(tensor, 1);
      ADD_FAILURE() << "no exception";
    } catch (const PeerLostError& error) {
      EXPECT_EQ(error.peer(), 1) << error.what();
      EXPECT_TRUE(contains(error.what(), "recv from rank 1, message 1: rank 1 left the group"));
    }
  });
}

TEST(Message, NeverSentIsNamedInATimeout) {
  const Gate over;
  run_ranks(2, [&](const Group& group) {
    if (group->rank() == 1) return over.pass();
    auto tensor = at::ones({3});
    try {
      group->recv(tensor, 1, {.timeout = std::chrono::milliseconds(300)});
      ADD_FAILURE() << "no exception";
    } catch (const TimeoutError& error) {
      EXPECT_TRUE(contains(error.what(), "recv from rank 1, message 1: timed out after 0.3 s"));
      EXPECT_TRUE(contains(error.what(), "rank 0: completed no call yet, waiting in recv from rank 1, message 1"));
    }
    over.open();
  });
}

}  // namespace
}  // namespace ddp::testing
