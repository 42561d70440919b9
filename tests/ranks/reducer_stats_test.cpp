// Where a reduction's time went, as the wrapper tells it.

#include "ddp/reducer_stats.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "ddp/distributed_data_parallel.hpp"
#include "support/ranks.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

void expect_in_order(const ReducerStats& stats) {
  EXPECT_GT(stats.backward, 0ns);
  EXPECT_GE(stats.exposed, 0ns);
  auto launched_before = 0ns;
  for (const auto& bucket : stats.buckets) {
    EXPECT_LE(0ns, bucket.full);
    EXPECT_LE(bucket.full, bucket.launched);
    EXPECT_LE(bucket.launched, bucket.done);
    EXPECT_LE(bucket.done, stats.backward + stats.exposed);
    EXPECT_LE(launched_before, bucket.launched) << "buckets stand in the order of their launch";
    launched_before = bucket.launched;
  }
}

TEST(ReducerStats, CountBucketsBytesAndParameters) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 0.0005, .first_bucket_cap_mb = 0.0001});
    EXPECT_EQ(model->reducer_stats().step, 0);
    for (int step = 1; step <= 3; ++step) {
      model(torch::ones({2, 8}, torch::kDouble)).sum().backward();
      const auto& stats = model->reducer_stats();
      EXPECT_EQ(stats.step, step);
      std::int64_t bytes = 0;
      std::size_t parameters = 0;
      for (const auto& bucket : stats.buckets) {
        bytes += bucket.bytes;
        parameters += bucket.parameters;
      }
      EXPECT_GT(stats.buckets.size(), 2u);
      EXPECT_EQ(bytes, model->bucket_bytes());
      EXPECT_EQ(parameters, net->parameters().size());
      expect_in_order(stats);
    }
  });
}

TEST(ReducerStats, CountReductionsOnly) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group);
    const auto x = torch::ones({2, 8}, torch::kDouble);
    for (int step = 0; step < 4; ++step) {
      std::optional<NoSync> guard;
      if (step % 2 == 0) guard.emplace(model->no_sync());
      model(x).sum().backward();
    }
    EXPECT_EQ(model->reducer_stats().step, 2);
  });
}

TEST(ReducerStats, ShowThatABucketLeftBeforeTheBackwardWasOver) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<WaitsForMeanImpl>();
    DistributedDataParallel model(net, group,
                                  {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6, .overlap_communication = true});
    EXPECT_TRUE(averages_while_backward_runs(model, *net, group->rank()));
    const auto& stats = model->reducer_stats();
    ASSERT_EQ(stats.buckets.size(), 2u);
    expect_in_order(stats);
    EXPECT_LT(stats.buckets[0].launched, stats.backward) << "the first layer's backward has waited for its mean";
  });
}

TEST(ReducerStats, KnowWhenABucketIsFullWhoseLastParametersGoWithoutGradients) {
  struct NetImpl : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
    torch::nn::Linear idle = register_module("idle", torch::nn::Linear(4, 4));
    torch::Tensor forward(torch::Tensor x) { return first(x); }
  };
  run_ranks(2, [](const Group& group) {
    for (const bool is_static : {false, true}) {
      DistributedDataParallel model(std::make_shared<NetImpl>(), group,
                                    {.bucket_cap_mb = 1e-6,
                                     .first_bucket_cap_mb = 1e-6,
                                     .find_unused_parameters = !is_static,
                                     .static_graph = is_static});
      for (int step = 0; step < 3; ++step) {
        model(torch::ones({1, 4})).sum().backward();
        expect_in_order(model->reducer_stats());
        // In a learned graph nothing is awaited for the buckets of `idle`.
        const auto& buckets = model->reducer_stats().buckets;
        ASSERT_EQ(buckets.size(), 4u);
        const auto waits = [](const BucketStats& bucket) { return bucket.full > 0ns; };
        EXPECT_EQ(std::count_if(buckets.begin(), buckets.end(), waits), is_static && step > 0 ? 2 : 4);
      }
    }
  });
}

TEST(ReducerStats, AreThoseOfTheLastCompleteReductionAfterAVoidOne) {
  run_ranks(2, [](const Group& group) {
    struct MaybeImpl : torch::nn::Module {
      torch::Tensor a = register_parameter("a", torch::ones({2}));
      torch::Tensor b = register_parameter("b", torch::ones({2}));
      torch::Tensor forward(torch::Tensor x, bool all) { return all ? x * a * b : x * a; }
    };
    DistributedDataParallel model(std::make_shared<MaybeImpl>(), group);
    model(torch::ones({2}), true).sum().backward();
    EXPECT_THROW(model(torch::ones({2}), false).sum().backward(), GradientError);
    EXPECT_EQ(model->reducer_stats().step, 1);
    EXPECT_EQ(model->reducer_stats().buckets.size(), 1u);
    model(torch::ones({2}), true).sum().backward();
    EXPECT_EQ(model->reducer_stats().step, 3);
  });
}

TEST(ReducerStats, AreEmptyInAWorldOfOne) {
  run_ranks(1, [](const Group& group) {
    DistributedDataParallel model(Perceptron(), group);
    model(torch::ones({2, 8}, torch::kDouble)).sum().backward();
    EXPECT_EQ(model->reducer_stats().step, 0);
    EXPECT_TRUE(model->reducer_stats().buckets.empty());
  });
}

}  // namespace
}  // namespace ddp
