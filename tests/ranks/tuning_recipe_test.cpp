// The procedure of docs/tuning.md is code that compiles and trains: tuning_recipe.inc is what stands there.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/ddp.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;

/// Points of a plane, [3] to [1].
struct Plane : torch::data::datasets::Dataset<Plane> {
  torch::data::Example<> get(std::size_t index) override {
    const auto x = torch::sin(torch::arange(1, 4, torch::kFloat) * static_cast<double>(index + 1));
    return {x, (x * torch::tensor({1.0F, -2.0F, 0.5F})).sum(0, true)};
  }
  torch::optional<std::size_t> size() const override { return 160; }
};

/// How far the weights are from the plane's after the recipe's run.
double distance_after_recipe(const std::shared_ptr<ProcessGroup>& group) {
  torch::manual_seed(3);
  torch::nn::Linear net(3, 1);
  DistributedDataParallel model(net, group);
  const DistributedSampler sampler(160, *group, {.seed = 1, .drop_last = true});
  const auto loader = make_data_loader(Plane().map(torch::data::transforms::Stack<>()), sampler, 8);
#include "tuning_recipe.inc"
  EXPECT_EQ(scheduler.steps(), 500);
  EXPECT_DOUBLE_EQ(rate, 0.05 * group->size());
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), rate) << "after the warm-up of a try it stays";
  return (net->weight.detach() - torch::tensor({1.0F, -2.0F, 0.5F})).norm().item<double>();
}

TEST(TuningRecipe, FindsThePlaneOnOneRankAndOnTwo) {
  for (const int world : {1, 2})
    run_ranks(world, [](const auto& group) { EXPECT_LT(distance_after_recipe(group), 1e-3); });
}

}  // namespace
}  // namespace ddp
