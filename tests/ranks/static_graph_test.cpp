// static_graph: what the first step shows holds for all later ones, and a graph that changes is an error.

#include <gtest/gtest.h>

#include "ddp/distributed_data_parallel.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/recomputed.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Route = std::vector<int>;

const DistributedDataParallelOptions kStatic{.static_graph = true};
const auto kStaticBucketEach = with_bucket_each(kStatic);

std::shared_ptr<RoutesImpl> make_routes() { return std::make_shared<RoutesImpl>(); }
std::shared_ptr<RecomputedImpl> make_recomputed() { return std::make_shared<RecomputedImpl>(); }

// A rank's loss over the route that `choose` gives.
template <class Choose>
auto over(const Choose& choose) {
  return [choose](auto& call, auto&, const Turn& turn) { return call(turn.input(), choose(turn)).pow(2).mean(); };
}

TEST(StaticGraph, LearnsUnusedParametersInItsFirstStep) {
  for (const auto zero : {Zero::to_none, Zero::in_place, Zero::never})
    expect_equal_to_one_process(kStatic, make_routes, over([](const Turn&) { return Route{0, 2}; }), {.zero = zero});
}

TEST(StaticGraph, MayBeAnotherOneOnEachRank) {
  expect_equal_to_one_process(kStatic, make_routes, over([](const Turn& turn) {
                                const std::vector<Route> routes{{0, 1}, {}, {1, 1}};
                                return routes[turn.rank];
                              }));
}

TEST(StaticGraph, LearnsHowOftenARecomputedBlockIsUsed) {  // R20
  const auto loss = over([](const Turn& turn) { return turn.rank == 0 ? Route{0, 1, 0} : Route{1, 1, 1}; });
  for (const auto zero : {Zero::to_none, Zero::never})
    expect_equal_to_one_process(kStatic, make_recomputed, loss, {.zero = zero});
  run_ranks(2, [&](const Group& group) {
    ::testing::internal::CaptureStderr();
    expect_equal_backwards(
        group, kStaticBucketEach, make_recomputed,
        [&](auto& call, auto& net, const Turn& turn, double share) { (loss(call, net, turn) * share).backward(); });
    EXPECT_EQ(::testing::internal::GetCapturedStderr().find(" warn "), std::string::npos);
  });
}

TEST(StaticGraph, MayHaveADifferentBranchInEachMicroBatch) {
  for (const auto zero : {Zero::to_none, Zero::in_place, Zero::never})
    expect_equal_to_one_process(kStatic, make_routes, over([](const Turn& turn) {
                                  const std::vector<Route> routes{{0}, {}, {1}};
                                  return routes[(turn.micro + turn.rank) % 3];
                                }),
                                {.micro_batches = 2, .zero = zero});
}

TEST(StaticGraph, MayHaveSeveralForwardsBeforeABackward) {  // R05
  expect_equal_to_one_process(kStatic, make_routes, [](auto& call, auto&, const Turn& turn) {
    const auto first = call(turn.input(), Route{0, 1});
    return first.pow(2).mean() + call(first, Route{1}).pow(2).mean();
  });
}

TEST(StaticGraph, MayUseAParameterThatTheModuleDoesNot) {
  expect_equal_to_one_process(kStatic, make_routes, [](auto& call, auto& net, const Turn& turn) {
    const auto output = call(turn.input(), Route{0});
    return output.pow(2).mean() + net.layers[2]->weight.pow(2).sum() * (0.1 + turn.rank);
  });
}

TEST(StaticGraph, LetsTheOthersBucketsLeaveOnceTheUnusedOnesAreKnown) {
  struct NetImpl : WaitsForMeanImpl {
    NetImpl() { register_parameter("idle", torch::ones({1})); }
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<NetImpl>();
    DistributedDataParallel model(net, group, kStaticBucketEach);
    model(torch::ones({1})).backward();
    net->zero_grad();
    EXPECT_TRUE(averages_while_backward_runs(model, *net, group->rank()));
  });
}

// Three steps over `learned`; then one that takes `changed` on the last rank alone and is an error on all ranks, which
// contains `texts`; then again steps over `learned`, equal to one process that never saw the other one.
template <class Make>
void expect_change_is_found(const Make& make, const Route& learned, const Route& changed,
                            const std::vector<std::string>& texts) {
  everywhere(kStatic, [&](const Group& group, const DistributedDataParallelOptions& options) {
    const auto culprit = group->size() - 1;
    const auto backward = [&](auto& call, auto& net, const Turn& turn, double share) {
      const bool is_wrapped = share == 1;
      if (is_wrapped && turn.step == 3) {
        const auto route = turn.rank == culprit ? changed : learned;
        const auto text = text_of<GradientError>([&] { call(turn.input(), route).sum().backward(); });
        EXPECT_TRUE(contains(text, "on rank " + std::to_string(culprit) + ": static_graph: "));
        for (const auto& part : texts) EXPECT_TRUE(contains(text, part));
        for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
      }
      (call(turn.input(), learned).pow(2).mean() * share).backward();
    };
    expect_equal_backwards(group, options, make, backward, {.steps = 6});
  });
}

TEST(StaticGraph, NamesAParameterThatIsNew) {
  expect_change_is_found(make_routes, {0}, {0, 2}, {"layer2", "used 0 times"});
}

TEST(StaticGraph, NamesAParameterThatIsNewAndComesFirst) {
  run_ranks(2, [](const Group& group) {
    for (const bool on_all_ranks : {true, false}) {
      Routes net;
      DistributedDataParallel model(net, group, kStaticBucketEach);
      model(Turn{group->rank(), 0, 0}.input(), Route{0}).sum().backward();
      net->zero_grad();
      const bool changes = on_all_ranks || group->rank() == 1;
      const auto text = text_of<GradientError>([&] {
        const auto loss = model(Turn{group->rank(), 1, 0}.input(), Route{0}).sum();
        (changes ? loss + net->layers[2]->weight.sum() : loss).backward();
      });
      EXPECT_TRUE(contains(text, on_all_ranks ? "on ranks 0, 1: static_graph" : "on rank 1: static_graph"));
      EXPECT_TRUE(contains(text, "a gradient for layer2.weight [4, 4], which the first step used 0 times"));
      EXPECT_FALSE(net->layers[2]->weight.grad().defined());
    }
  });
}

TEST(StaticGraph, NamesParametersThatAreMissing) {
  expect_change_is_found(make_routes, {0, 1, 2}, {0, 1}, {"no gradient, or too few, for layer2.weight", "layer2.bias"});
}

TEST(StaticGraph, NamesAllParametersWhereTheBackwardReachesNone) {
  expect_change_is_found(make_routes, {0, 1}, {}, {"layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias"});
}

TEST(StaticGraph, NamesABlockThatIsRecomputedMoreOftenOrLess) {
  expect_change_is_found(make_recomputed, {0, 0}, {0, 0, 0}, {"a gradient for", "0.", "used 2 times"});
  expect_change_is_found(make_recomputed, {0, 0}, {0}, {"too few, for a0.weight", "b0.bias"});
}

}  // namespace
}  // namespace ddp
