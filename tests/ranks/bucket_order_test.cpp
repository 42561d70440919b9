// The order of buckets: agreed once, from the order in which rank 0's gradients arrived, where that helps.

#include <gtest/gtest.h>

#include "ddp/distributed_data_parallel.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Order = std::vector<int>;

// Weights w0 [1], w1 [2], w2 [3], used in the order asked for; the last one used has the first gradient.
struct SizesImpl : torch::nn::Module {
  torch::Tensor forward(double x, const Order& order) {
    auto sum = torch::full({}, x);
    for (const auto i : order) sum = sum * weights[i].sum();
    return sum;
  }
  std::vector<torch::Tensor> weights{register_parameter("w0", torch::ones({1})),
                                     register_parameter("w1", torch::ones({2})),
                                     register_parameter("w2", torch::ones({3}))};
};

constexpr std::int64_t kRecord = 2 * 23 * 4;  // bytes of what two ranks tell each other, behind the last bucket

// Bytes of the gradients in each bucket, in the order of launch: 4, 8 and 12 stand for w0, w1 and w2.
std::vector<std::int64_t> launched(const ReducerStats& stats) {
  std::vector<std::int64_t> bytes;
  for (const auto& bucket : stats.buckets) bytes.push_back(bucket.bytes);
  bytes.back() -= kRecord;
  return bytes;
}
using Bytes = std::vector<std::int64_t>;

TEST(BucketOrder, FollowsTheArrivalOfGradientsFromTheSecondStepOn) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<SizesImpl>();
    DistributedDataParallel model(net, group, kBucketEach);
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      model(1.0 + group->rank(), Order{2, 1, 0}).backward();
      EXPECT_EQ(launched(model->reducer_stats()), step == 0 ? (Bytes{12, 8, 4}) : (Bytes{4, 8, 12})) << step;
    }
  });
}

TEST(BucketOrder, OfAModuleRegisteredInOrderOfUseStaysAsItIs) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<SizesImpl>();
    DistributedDataParallel model(net, group, kBucketEach);
    const void* memory = nullptr;
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      model(1.0 + group->rank(), Order{0, 1, 2}).backward();
      EXPECT_EQ(launched(model->reducer_stats()), (Bytes{12, 8, 4}));
      if (step == 0) memory = net->weights[0].grad().data_ptr();
      EXPECT_EQ(net->weights[0].grad().data_ptr(), memory);
    }
  });
}

TEST(BucketOrder, IsNotRebuiltWhereAllGradientsTravelTogether) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<SizesImpl>();
    DistributedDataParallel model(net, group);
    model(1.0, Order{2, 1, 0}).backward();
    const void* const memory = net->weights[0].grad().data_ptr();
    net->zero_grad();
    model(1.0, Order{2, 1, 0}).backward();
    EXPECT_EQ(net->weights[0].grad().data_ptr(), memory);
  });
}

TEST(BucketOrder, IsThatOfRankZero) {  // R18
  for (const bool rank0_reverses : {true, false})
    run_ranks(3, [&](const Group& group) {
      const auto net = std::make_shared<SizesImpl>();
      DistributedDataParallel model(net, group, kBucketEach);
      const bool reverses = (group->rank() == 0) == rank0_reverses;
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        model(1.0 + group->rank(), reverses ? Order{2, 1, 0} : Order{0, 1, 2}).backward();
        EXPECT_EQ(net->weights[1].grad()[0].item<float>(), 6.0F) << step;
      }
      const auto front = model->reducer_stats().buckets.front().bytes;
      EXPECT_EQ(front, rank0_reverses ? 4 : 12);
    });
}

TEST(BucketOrder, IsAgreedOnce) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<SizesImpl>();
    DistributedDataParallel model(net, group, kBucketEach);
    model(1.0, Order{2, 1, 0}).backward();
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      model(1.0, Order{0, 1, 2}).backward();
      EXPECT_EQ(launched(model->reducer_stats()), (Bytes{4, 8, 12}));
    }
  });
}

TEST(BucketOrder, OfTheFirstStepThatWasNotVoidCounts) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<SizesImpl>();
    DistributedDataParallel model(net, group, kBucketEach);
    EXPECT_THROW(model(1.0, Order{0, 2}).backward(), GradientError);
    model(1.0, Order{2, 1, 0}).backward();
    net->zero_grad();
    model(1.0, Order{2, 1, 0}).backward();
    EXPECT_EQ(launched(model->reducer_stats()), (Bytes{4, 8, 12}));
  });
}

TEST(BucketOrder, LetsBucketsLeaveWhileBackwardRunsThoughLayersWereRegisteredBackToFront) {
  struct BackToFrontImpl : WaitsForMeanImpl {
    BackToFrontImpl() {
      parameters_.erase("first");
      register_parameter("first", first);
    }
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<BackToFrontImpl>();
    DistributedDataParallel model(net, group, kBucketEach);
    model(torch::ones({1})).backward();
    net->zero_grad();
    EXPECT_TRUE(averages_while_backward_runs(model, *net, group->rank()));
    const auto& stats = model->reducer_stats();  // the mean was there before the last gradient
    EXPECT_LT(stats.buckets[0].launched, stats.buckets[1].full);
    EXPECT_LE(stats.buckets[1].full, stats.backward);
  });
}

TEST(BucketOrder, MayChangeWhileOldGradientsAccumulate) {
  expect_equal_to_one_process(
      {}, [] { return std::make_shared<RoutesImpl>(); },
      [](auto& call, auto&, const Turn& turn) { return call(turn.input(), Order{2, 1, 0}).pow(2).mean(); },
      {.zero = Zero::never});
}

}  // namespace
}  // namespace ddp
