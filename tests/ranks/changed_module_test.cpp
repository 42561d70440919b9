// Modules that change after wrapping: parameters frozen, thawed, moved, loaded or replaced; and names in messages.

#include <gtest/gtest.h>

#include <sstream>

#include "ddp/distributed_data_parallel.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Route = std::vector<int>;

const DistributedDataParallelOptions kPlain{};
const DistributedDataParallelOptions kFindUnused{.find_unused_parameters = true};
const DistributedDataParallelOptions kStatic{.static_graph = true};
const Route kAll{0, 1, 2};

std::shared_ptr<RoutesImpl> make_routes() { return std::make_shared<RoutesImpl>(); }

void freeze(torch::nn::Linear& layer, bool frozen) {
  for (auto& parameter : layer->parameters()) parameter.set_requires_grad(!frozen);
}

TEST(ChangedModule, MayFreezeAndThawParametersThatMayBeUnused) {  // R10
  for (const auto zero : {Zero::to_none, Zero::in_place})
    expect_equal_to_one_process(kFindUnused, make_routes,
                                [](auto& call, auto& net, const Turn& turn) {
                                  freeze(net.layers[0], turn.step == 2 || turn.step == 3);
                                  return call(turn.input(), kAll).pow(2).mean();
                                },
                                {.steps = 6, .zero = zero});
}

TEST(ChangedModule, NamesAParameterThatWasFrozenOnAnyRank) {  // R10
  for (const auto& options : {kPlain, kStatic})
    for (const bool everywhere : {true, false})
      run_ranks(2, [&](const Group& group) {
        Routes net;
        DistributedDataParallel model(net, group, options);
        const auto step = [&](int number) {
          net->zero_grad();
          model(Turn{group->rank(), number, 0}.input(), kAll).sum().backward();
        };
        step(0);
        step(1);
        const bool freezes = everywhere || group->rank() == 0;
        freeze(net->layers[0], freezes);
        const auto text = text_of<GradientError>([&] { step(2); });
        EXPECT_TRUE(contains(text, everywhere ? "on ranks 0, 1: " : "on rank 0: "));
        EXPECT_TRUE(contains(text, "layer0.weight [4, 4], layer0.bias [4]"));
        freeze(net->layers[0], false);
        step(3);
        EXPECT_TRUE(same_on_all_ranks(*group, net->layers[0]->weight.grad()));
      });
}

TEST(ChangedModule, IsStillAveragedOnceItsParametersWereLoaded) {
  std::stringstream file;
  {
    torch::NoGradGuard no_grad;
    Routes saved;
    for (auto& parameter : saved->parameters()) parameter.mul_(0.5);
    torch::save(saved, file);
  }
  const auto text = file.str();
  for (const auto& options : {kPlain, kFindUnused, kStatic})
    expect_equal_to_one_process(options, make_routes, [&](auto& call, auto& net, const Turn& turn) {
      if (turn.step == 2) {
        std::stringstream copy(text);
        torch::serialize::InputArchive archive;
        archive.load_from(copy);
        net.load(archive);
      }
      return call(turn.input(), kAll).pow(2).mean();
    });
}

// `change` is made after two steps; the next forward on that rank is an error with these words.
void expect_next_forward_names(const DistributedDataParallelOptions& options,
                               const std::function<void(RoutesImpl&)>& change, const std::string& words) {
  run_ranks(2, [&](const Group& group) {
    Routes net;
    DistributedDataParallel model(net, group, options);
    for (int step = 0; step < 2; ++step) model(Turn{group->rank(), step, 0}.input(), kAll).sum().backward();
    change(*net);
    const auto text = text_of<std::logic_error>([&] { model(Turn{group->rank(), 2, 0}.input(), kAll); });
    EXPECT_TRUE(contains(text, words));
  });
}

TEST(ChangedModule, NamesAParameterThatWasConverted) {
  for (const auto& options : {kPlain, kFindUnused, kStatic})
    expect_next_forward_names(
        options, [](RoutesImpl& net) { net.layers[1]->to(torch::kFloat); },
        "layer1.weight was moved, converted or resized after wrapping");
}

TEST(ChangedModule, NamesAParameterThatWasReplacedWhereTheOldOneWouldLookUnused) {
  expect_next_forward_names(
      kFindUnused,
      [](RoutesImpl& net) {
        net.layers[1] = net.replace_module("layer1", torch::nn::Linear(4, 4));
        net.layers[1]->to(torch::kDouble);
      },
      "layer1.weight was registered or replaced after wrapping");
  expect_next_forward_names(
      kFindUnused, [](RoutesImpl& net) { net.register_parameter("late", torch::ones({2}, torch::kDouble)); },
      "late was registered or replaced after wrapping");
}

TEST(ChangedModule, NamesAParameterThatWasReplacedInTheNextBackward) {
  for (const auto& options : {kPlain, kStatic})
    run_ranks(2, [&](const Group& group) {
      Routes net;
      DistributedDataParallel model(net, group, options);
      model(Turn{group->rank(), 0, 0}.input(), kAll).sum().backward();
      net->layers[1] = net->replace_module("layer1", torch::nn::Linear(4, 4));
      net->layers[1]->to(torch::kDouble);
      const auto text =
          text_of<std::exception>([&] { model(Turn{group->rank(), 1, 0}.input(), kAll).sum().backward(); });
      EXPECT_TRUE(contains(text, "layer1.weight"));
    });
}

TEST(ChangedModule, TellsAllNamesOfAModuleThatIsRegisteredTwice) {
  struct TiedImpl : RoutesImpl {
    TiedImpl() { register_module("again", layers[2]); }
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<TiedImpl>();
    DistributedDataParallel model(net, group);
    EXPECT_EQ(model->parameters().size(), 6u);
    EXPECT_EQ(net->parameters().size(), 8u);
    const auto text =
        text_of<GradientError>([&] { model(Turn{group->rank(), 0, 0}.input(), Route{0, 1}).sum().backward(); });
    EXPECT_TRUE(contains(text, "layer2.weight = again.weight [4, 4]"));
  });
}

}  // namespace
}  // namespace ddp
