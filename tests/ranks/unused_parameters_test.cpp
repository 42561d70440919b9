// find_unused_parameters: ranks and steps whose backward reaches some of the parameters.

#include <gtest/gtest.h>

#include "ddp/distributed_data_parallel.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/recomputed.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp::testing {
struct Heads {
  at::Tensor left, right;
};
}  // namespace ddp::testing

template <>
struct ddp::TensorVisitor<ddp::testing::Heads> {
  template <class F>
  static void visit(const ddp::testing::Heads& value, F& f) {
    ddp::visit_tensors(value.left, f);
    ddp::visit_tensors(value.right, f);
  }
};

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Route = std::vector<int>;

const DistributedDataParallelOptions kFindUnused{.find_unused_parameters = true};
const auto kFindUnusedBucketEach = with_bucket_each(kFindUnused);

std::shared_ptr<RoutesImpl> make_routes() { return std::make_shared<RoutesImpl>(); }

// Trains where each turn takes the route that `choose` gives.
template <class Choose>
void expect_routes_equal_one_process(const Choose& choose, const TrainingPlan& plan = {},
                                     const DistributedDataParallelOptions& options = kFindUnused) {
  expect_equal_to_one_process(
      options, make_routes,
      [&](auto& call, auto&, const Turn& turn) { return call(turn.input(), choose(turn)).pow(2).mean(); }, plan);
}

TEST(UnusedParameters, LeaveTheUsedOnesAsInOneProcess) {  // R01 (b)
  expect_routes_equal_one_process([](const Turn&) { return Route{0, 2}; }, {.steps = 5});
}

TEST(UnusedParameters, OfAllRanksKeepTheirBitsThroughDecayAndMomentum) {  // R03
  run_ranks(2, [](const Group& group) {
    for (const bool views : {true, false}) {
      Routes net, initial;
      DistributedDataParallel model(net, group, {.gradient_as_bucket_view = views, .find_unused_parameters = true});
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        model(Turn{group->rank(), step, 0}.input(), Route{0, 2}).sum().backward();
        optimizer.step();
      }
      for (const auto& idle : net->layers[1]->named_parameters()) {
        EXPECT_FALSE(idle.value().grad().defined());
        EXPECT_TRUE(torch::equal(idle.value(), initial->layers[1]->named_parameters()[idle.key()]));
      }
      EXPECT_FALSE(torch::equal(net->layers[0]->weight, initial->layers[0]->weight));
    }
  });
}

TEST(UnusedParameters, OfOneRankHaveTheOtherOnesGradientOverTheWorldSize) {  // R03
  run_ranks(2, [](const Group& group) {
    Routes net, twin;
    DistributedDataParallel model(net, group, kFindUnused);
    model(Turn{group->rank(), 0, 0}.input(), group->rank() == 1 ? Route{0, 1, 2} : Route{0, 2}).sum().backward();
    twin(Turn{1, 0, 0}.input(), Route{0, 1, 2}).sum().backward();
    EXPECT_TRUE(close(net->layers[1]->weight.grad(), twin->layers[1]->weight.grad() / 2, 1e-10));
    EXPECT_TRUE(same_on_all_ranks(*group, net->layers[1]->weight.grad()));
  });
}

TEST(UnusedParameters, MayBeOthersOnEachRankAndInEachStep) {
  const std::vector<Route> routes{{0}, {1, 0}, {2, 2}, {0, 1, 2}, {1}};
  expect_routes_equal_one_process([&](const Turn& turn) { return routes[(turn.step + 2 * turn.rank) % 5]; },
                                  {.steps = 6});
}

TEST(UnusedParameters, MayBeAllOfThemOnARankOrOnAll) {
  expect_routes_equal_one_process(
      [](const Turn& turn) { return turn.step == 2 || turn.step == turn.rank ? Route{} : Route{0, 1, 2}; },
      {.steps = 5});
}

TEST(UnusedParameters, AreThoseOfNoneOfTheForwardsBeforeABackward) {  // R05
  expect_equal_to_one_process(kFindUnused, make_routes, [](auto& call, auto&, const Turn& turn) {
    const auto first = call(turn.input(), turn.rank == 0 ? Route{0, 1} : Route{0});
    const auto second = call(turn.input() * 2, turn.step % 2 == 0 ? Route{1} : Route{0});
    return first.pow(2).mean() + second.pow(4).mean();
  });
}

TEST(UnusedParameters, AreFoundThroughContainersAndStructsOfWhichTheLossUsesOneTensor) {  // R07
  using Bundle = std::tuple<at::Tensor, std::optional<at::Tensor>, std::map<std::string, at::Tensor>>;
  struct ManyImpl : RoutesImpl {
    ManyImpl() : RoutesImpl(4) {}
    Bundle forward(torch::Tensor x) {
      return {layers[0](x), layers[1](x), {{"used", layers[2](x)}, {"idle", layers[3](x)}, {"none", {}}}};
    }
    Heads forward(torch::Tensor x, int head) { return {layers[head](x), {}}; }
  };
  expect_equal_to_one_process(
      kFindUnused, [] { return std::make_shared<ManyImpl>(); },
      [](auto& call, auto&, const Turn& turn) {
        if (turn.step % 2 == 0) return std::get<2>(call(turn.input())).at("used").pow(2).mean();
        return call(turn.input(), turn.rank == 0 ? 1 : 3).left.pow(2).mean();
      });
}

TEST(UnusedParameters, AreRightWhereRanksTakeLayersInOppositeOrder) {  // R18
  const auto order = [](const Turn& turn) {
    return turn.rank == 0 ? Route{0, 1, 2, 3, 4, 5} : Route{5, 4, 3, 2, 1, 0};
  };
  for (const bool find_unused : {true, false})
    expect_equal_to_one_process(
        {.bucket_cap_mb = 1.0 / 1024, .first_bucket_cap_mb = 0.1 / 1024, .find_unused_parameters = find_unused},
        [] { return std::make_shared<RoutesImpl>(6); },
        [&](auto& call, auto&, const Turn& turn) { return call(turn.input(), order(turn)).pow(2).mean(); });
}

TEST(UnusedParameters, OfASubGroupConcernNoOtherRank) {  // R18
  run_ranks(3, [](const Group& whole) {
    const auto group = whole->new_group({0, 1});
    if (!group) return;
    expect_equal_backwards(group, kFindUnusedBucketEach, make_routes,
                           [](auto& call, auto&, const Turn& turn, double share) {
                             const auto route = turn.rank == 0 ? Route{0, 1, 2} : Route{2, 0};
                             (call(turn.input(), route).pow(2).mean() * share).backward();
                           });
  });
}

TEST(UnusedParameters, AreThoseThatNoMicroBatchUsed) {
  const std::vector<Route> routes{{0}, {1}, {}, {2}, {0, 1}};
  for (const auto zero : {Zero::to_none, Zero::in_place, Zero::never})
    expect_routes_equal_one_process([&](const Turn& turn) { return routes[turn.micro + turn.step % 2]; },
                                    {.micro_batches = 3, .zero = zero});
}

TEST(UnusedParameters, AreThoseThatNoMicroBatchOfAnyRankUsed) {
  const std::vector<Route> routes{{0}, {1}, {}, {2}, {0, 1}};
  for (const auto zero : {Zero::to_none, Zero::in_place, Zero::never})
    expect_routes_equal_one_process(
        [&](const Turn& turn) { return routes[(turn.micro + turn.rank + 2 * turn.step) % 5]; },
        {.micro_batches = 2, .zero = zero});
}

TEST(UnusedParameters, AccumulateWhereOthersUseThem) {
  for (const auto zero : {Zero::in_place, Zero::never})
    expect_routes_equal_one_process(
        [](const Turn& turn) {
          if (turn.step == 0) return Route{0, 1, 2};
          return turn.rank == 0 && turn.step != 2 ? Route{1} : Route{0};
        },
        {.zero = zero});
}

TEST(UnusedParameters, KeepTheBitsOfAnOldGradient) {
  everywhere(kFindUnused, [](const Group& group, const DistributedDataParallelOptions& options) {
    Routes net;
    DistributedDataParallel model(net, group, options);
    model(Turn{group->rank(), 0, 0}.input(), Route{0, 1}).sum().backward();
    const auto old = net->layers[1]->weight.grad().clone();
    for (int step = 1; step < 4; ++step) {
      model(Turn{group->rank(), step, 0}.input(), Route{0}).sum().backward();
      EXPECT_TRUE(torch::equal(net->layers[1]->weight.grad(), old)) << step;
      EXPECT_FALSE(net->layers[2]->weight.grad().defined());
    }
  });
}

TEST(UnusedParameters, DoNotHoldUpTheBucketsOfTheOthers) {
  // `idle` has the first bucket.
  struct NetImpl : WaitsForMeanImpl {
    torch::Tensor forward(torch::Tensor x) { return WaitsForMeanImpl::forward(x); }
    torch::Tensor forward(torch::Tensor x, bool) { return WaitsForMeanImpl::forward(x) * idle; }
    torch::Tensor idle = register_parameter("idle", torch::ones({1}));
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<NetImpl>();
    DistributedDataParallel model(net, group, kFindUnusedBucketEach);
    model(torch::ones({1}), true).backward();  // from which the order of buckets is agreed
    net->zero_grad();
    EXPECT_TRUE(averages_while_backward_runs(model, *net, group->rank()));
  });
}

// What the search cannot see: a loss that uses a parameter directly, before or after the output in the order of
// gradients; the same on one rank only.
TEST(UnusedParameters, ThatTheLossUsesDirectlyAreAveraged) {
  for (const bool comes_first : {true, false})
    for (const bool on_all_ranks : {true, false})
      for (const auto zero : {Zero::to_none, Zero::never})
        expect_equal_to_one_process(kFindUnused, make_routes,
                                    [&](auto& call, auto& net, const Turn& turn) {
                                      const auto direct = [&] {
                                        return net.layers[1]->weight.pow(2).sum() * (0.1 + turn.rank);
                                      };
                                      if (!on_all_ranks && turn.rank == 0)
                                        return call(turn.input(), Route{0}).pow(2).mean();
                                      if (comes_first) {
                                        const auto output = call(turn.input(), Route{0});
                                        return output.pow(2).mean() + direct();
                                      }
                                      const auto before = direct();
                                      return before + call(turn.input(), Route{0}).pow(2).mean();
                                    },
                                    {.zero = zero});
}

TEST(UnusedParameters, InRecomputedBlocksAreAveragedLaterAndSaidOnce) {  // R20
  const auto loss = [](auto& call, auto&, const Turn& turn) {
    const auto route = turn.rank == 0 ? Route{0, 1} : Route{1, 1};
    return call(turn.input(), route).pow(2).mean();
  };
  const auto make = [] { return std::make_shared<RecomputedImpl>(); };
  for (const auto zero : {Zero::to_none, Zero::never})
    expect_equal_to_one_process(kFindUnused, make, loss, {.zero = zero});
  run_ranks(2, [&](const Group& group) {
    ::testing::internal::CaptureStderr();
    expect_equal_backwards(
        group, kFindUnusedBucketEach, make,
        [&](auto& call, auto& net, const Turn& turn, double share) { (loss(call, net, turn) * share).backward(); });
    const auto said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(count(said, "came after their bucket had left"), group->rank() == 0 ? 1 : 0) << said;
    EXPECT_EQ(count(said, "b1.weight"), group->rank() == 0 ? 1 : 0) << said;
  });
}

// What 205 steps have said on this rank.
std::string said_in_many_steps(const Group& group, const std::function<Route(const Turn&)>& choose) {
  ::testing::internal::CaptureStderr();
  Routes net;
  DistributedDataParallel model(net, group, kFindUnused);
  for (int step = 0; step < 205; ++step) {
    const Turn turn{group->rank(), step, 0};
    net->zero_grad();
    model(turn.input(), choose(turn)).sum().backward();
  }
  return ::testing::internal::GetCapturedStderr();
}

constexpr const char* kNotNeeded = "every parameter was used in each of the first 100 steps";
constexpr const char* kDead = "no rank used";

TEST(UnusedParameters, ThatAreNeverFoundMakeRankZeroSayOnceThatTheOptionCanGo) {
  run_ranks(2, [](const Group& group) {
    const auto said = said_in_many_steps(group, [](const Turn&) { return Route{0, 1, 2}; });
    EXPECT_EQ(count(said, kNotNeeded), group->rank() == 0 ? 1 : 0) << said;
    EXPECT_EQ(count(said, " ms shorter"), group->rank() == 0 ? 1 : 0) << said;
    EXPECT_EQ(count(said, kDead), 0) << said;
  });
}

TEST(UnusedParameters, ThatNoRankEverUsedAreNamedOnceByRankZero) {
  run_ranks(2, [](const Group& group) {
    const auto said = said_in_many_steps(group, [](const Turn& turn) { return Route{turn.rank == 0 ? 0 : 2}; });
    EXPECT_EQ(count(said, "no rank used layer1.weight [4, 4], layer1.bias [4] in the first 100 steps"),
              group->rank() == 0 ? 1 : 0)
        << said;
    EXPECT_EQ(count(said, kNotNeeded), 0) << said;
  });
}

TEST(UnusedParameters, OfSomeRankInEachStepAreNoReasonToSayAnything) {
  run_ranks(2, [](const Group& group) {
    const auto said =
        said_in_many_steps(group, [](const Turn& turn) { return turn.rank == 0 ? Route{0, 1} : Route{2}; });
    EXPECT_EQ(count(said, kNotNeeded), 0) << said;
    EXPECT_EQ(count(said, kDead), 0) << said;
  });
}

}  // namespace
}  // namespace ddp
