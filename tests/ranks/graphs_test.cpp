// Backwards of every shape: several over one graph, several graphs in one, nested ones, and changed modules.

#include <gtest/gtest.h>

#include <algorithm>

#include "ddp/distributed_data_parallel.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/recomputed.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Route = std::vector<int>;

const DistributedDataParallelOptions kPlain{};
const DistributedDataParallelOptions kFindUnused{.find_unused_parameters = true};
const DistributedDataParallelOptions kStatic{.static_graph = true};

std::shared_ptr<RoutesImpl> make_routes() { return std::make_shared<RoutesImpl>(); }

template <class Make, class Backward>
void expect_equal_backwards_everywhere(const DistributedDataParallelOptions& options, const Make& make,
                                       const Backward& backward, const TrainingPlan& plan = {}) {
  everywhere(options, [&](const Group& group, const DistributedDataParallelOptions& variant) {
    expect_equal_backwards(group, variant, make, backward, plan);
  });
}

TEST(Graphs, ThatAreRetainedAreReducedInEachBackward) {  // R19
  for (const auto& options : {kPlain, kFindUnused, kStatic})
    expect_equal_backwards_everywhere(options, make_routes, [](auto& call, auto&, const Turn& turn, double share) {
      const auto output = call(turn.input(), Route{0, 1, 2});
      (output.pow(2).mean() * share).backward({}, true);
      (output.pow(4).sum() * share).backward({}, true);
      (output.exp().mean() * share).backward();
    });
}

TEST(Graphs, OfTwoOutputsMayHaveABackwardEach) {  // R19
  expect_equal_backwards_everywhere(kFindUnused, make_routes, [](auto& call, auto&, const Turn& turn, double share) {
    const auto trunk = call(turn.input(), Route{0});
    const auto head = call(trunk, turn.rank == 0 ? Route{1} : Route{2});
    (trunk.pow(2).mean() * share).backward({}, true);
    (head.pow(2).mean() * share).backward();
  });
}

// BatchNorm in training and, frozen, in evaluation mode.
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    second = register_module("second", torch::nn::Linear(4, 4));
    frozen = register_module("frozen", torch::nn::BatchNorm1d(4));
    plain = register_module(
        "plain", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(4).affine(false).track_running_stats(false)));
    to(torch::kDouble);
    frozen->eval();
  }
  torch::Tensor forward(torch::Tensor x) { return frozen(second(torch::tanh(norm(first(plain(x)))))); }
  torch::nn::Linear first = nullptr, second = nullptr;
  torch::nn::BatchNorm1d norm = nullptr, frozen = nullptr, plain = nullptr;
};

TEST(Graphs, OfSeveralForwardsOutliveTheBroadcastOfBuffersBetweenThem) {  // R05
  for (const auto& options : {kPlain, kFindUnused, kStatic})
    expect_equal_to_one_process(
        options, [] { return std::make_shared<NormedImpl>(); },
        [](auto& call, auto&, const Turn& turn) {
          const auto first = call(turn.input());
          const auto second = call(turn.input() * 3 + 1);
          return first.pow(2).mean() + (second * first.detach()).mean() + call(second).pow(2).mean();
        });
}

TEST(Graphs, OfSeveralForwardsAreOneReductionWithoutSearchToo) {  // R05
  expect_equal_to_one_process(kPlain, make_routes, [](auto& call, auto&, const Turn& turn) {
    return call(turn.input(), Route{0, 1}).pow(2).mean() + call(turn.input() * 2, Route{2, 1}).pow(2).mean();
  });
}

TEST(Graphs, MayRecomputeOneBlockOrSeveralOrOneTwice) {  // R20
  for (const auto& options : {kPlain, kFindUnused, kStatic})
    for (const auto& route : {Route{0}, Route{0, 1, 2}, Route{0, 0}, Route{1, 0, 1}}) {
      const auto used = static_cast<int>(*std::max_element(route.begin(), route.end())) + 1;
      expect_equal_to_one_process(
          options, [&] { return std::make_shared<RecomputedImpl>(used); },
          [&](auto& call, auto&, const Turn& turn) { return call(turn.input(), route).pow(2).mean(); }, {.steps = 2});
    }
}

// A block inside a block inside ...; each level has a layer of its own, the last ones share theirs.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int depth) : blocks(depth) {
    torch::manual_seed(7);
    for (int i = 0; i < 3; ++i) layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(4, 4)));
    to(torch::kDouble);
    for (int level = 0; level < depth; ++level)
      blocks[level] = [this, level, depth](at::Tensor x) {
        x = x + torch::tanh(layers[std::min(level, 2)](x));
        return level + 1 < depth ? Recompute::apply(x, &blocks[level + 1]) : x;
      };
  }
  torch::Tensor forward(torch::Tensor x) { return Recompute::apply(x, &blocks[0]); }
  std::vector<torch::nn::Linear> layers;
  std::vector<Block> blocks;
};

TEST(Graphs, MayRecomputeBlocksInsideBlocks) {  // R20
  for (const auto& options : {kPlain, kFindUnused, kStatic})
    for (const int depth : {3, 5})
      expect_equal_to_one_process(
          options, [&] { return std::make_shared<DeepImpl>(depth); },
          [](auto& call, auto&, const Turn& turn) { return call(turn.input()).pow(2).mean(); }, {.steps = 2});
}

TEST(Graphs, MayBeNestedDeeperThanAutogradRecurses) {  // R20
  run_ranks(2, [](const Group& group) {
    for (const auto& options : {kPlain, kFindUnused, kStatic})
      expect_equal_backwards(
          group, options, [] { return std::make_shared<DeepImpl>(70); },
          [](auto& call, auto&, const Turn& turn, double share) {
            (call(turn.input()).pow(2).mean() * share * 1e-9).backward();
          },
          {.steps = 2});
  });
}

TEST(Graphs, MayContainAGradientOfTheirOwn) {
  for (const auto& options : {kPlain, kFindUnused, kStatic})
    expect_equal_to_one_process(options, make_routes, [](auto& call, auto&, const Turn& turn) {
      const auto input = turn.input();
      const auto output = call(input, Route{0, 1, 2});
      const auto slope = torch::autograd::grad({output.sum()}, {input}, {}, true, true)[0];
      return output.pow(2).mean() + (slope.norm(2, 1) - 1).pow(2).mean();
    });
}

TEST(Graphs, OfAGradientPenaltyAloneReachSomeParametersOnly) {
  for (const auto& options : {kFindUnused, kStatic})
    expect_equal_to_one_process(options, make_routes, [](auto& call, auto& net, const Turn& turn) {
      const auto input = turn.input();
      const auto output = net.layers[2](call(input, Route{0, 1}));  // no gradient for layer2.bias
      const auto slope = torch::autograd::grad({output.sum()}, {input}, {}, true, true)[0];
      return (slope.norm(2, 1) - 1).pow(2).mean();
    });
}

TEST(Graphs, OfTheInnerModuleAreReducedAsTheWrappersAre) {
  for (const auto& options : {kPlain, kFindUnused, kStatic})
    expect_equal_to_one_process(options, make_routes, [](auto& call, auto& net, const Turn& turn) {
      const Route all{0, 1, 2};
      const auto output = turn.step % 2 == 0 ? net.forward(turn.input(), all) : call(turn.input(), all);
      return output.pow(2).mean();
    });
}

TEST(Graphs, OfTheInnerModuleMayMissParameters) {
  expect_equal_to_one_process(kFindUnused, make_routes, [](auto& call, auto& net, const Turn& turn) {
    const auto route = turn.rank == 0 ? Route{0, 1} : Route{2};
    const auto output = turn.step % 2 == 0 ? net.forward(turn.input(), route) : call(turn.input(), route);
    return output.pow(2).mean();
  });
}

TEST(Graphs, MayHaveParametersWithoutElementsThatNobodyUses) {  // R31
  struct NetImpl : RoutesImpl {
    torch::Tensor extra = register_parameter("extra", torch::zeros({0, 16}, torch::kDouble));
  };
  for (const auto& options : {kFindUnused, kStatic})
    everywhere(options, [](const Group& group, const DistributedDataParallelOptions& variant) {
      const auto net = std::make_shared<NetImpl>();
      DistributedDataParallel model(net, group, variant);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        model(Turn{group->rank(), step, 0}.input(), Route{0}).sum().backward();
        ASSERT_TRUE(net->extra.grad().defined());
        EXPECT_EQ(net->extra.grad().sizes(), net->extra.sizes());
        EXPECT_FALSE(net->layers[1]->weight.grad().defined());
      }
    });
}

}  // namespace
}  // namespace ddp
