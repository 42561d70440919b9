#include "reduce/grad_hooks.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <thread>

namespace ddp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Counts what the hooks say.
struct Ears {
  int backwards = 0, gradients = 0, finishes = 0, abandoned = 0;
  std::vector<at::Tensor> parameters;
  GradHooks hooks;

  explicit Ears(std::vector<at::Tensor> tensors)
      : parameters(std::move(tensors)),
        hooks(parameters, {[this] { ++backwards; },
                           [this](std::size_t i) { gradients += parameters[i].grad().defined() ? 1 : 1000; },
                           [this] { ++finishes; }, [this] { ++abandoned; }}) {}
  std::vector<int> counts() {
    const std::vector<int> values{backwards, gradients, finishes};
    backwards = gradients = finishes = 0;
    return values;
  }
};

std::vector<int> heard(int backwards, int gradients, int finishes) { return {backwards, gradients, finishes}; }

at::Tensor weight() { return torch::ones({3, 3}).requires_grad_(); }

// Activation checkpointing as users of LibTorch write it: forward without a graph, backward again
// with one. `depth` more blocks are nested inside.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static at::Tensor forward(AutogradContext* context, at::Tensor input, at::Tensor w, std::int64_t depth, bool throws) {
    context->save_for_backward({input, w});
    context->saved_data["depth"] = depth;
    context->saved_data["throws"] = throws;
    const at::NoGradGuard no_grad;
    return input.mm(w);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto depth = context->saved_data["depth"].toInt();
    const bool throws = context->saved_data["throws"].toBool();
    const auto input = saved[0].detach().requires_grad_();
    const at::AutoGradMode with_graph(true);
    const auto output = depth > 0 ? Checkpointed::apply(input, saved[1], depth - 1, throws) : input.mm(saved[1]);
    if (throws && depth == 0) throw std::runtime_error("inner block failed");
    output.backward(gradients[0]);
    return {input.grad(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

TEST(GradHooks, HearEveryGradientAndThenTheEnd) {
  Ears ears({weight(), weight()});
  const auto& p = ears.parameters;
  auto loss = (p[0].mm(p[1])).sum();
  loss.backward();
  EXPECT_EQ(ears.counts(), heard(0, 2, 1));
}

TEST(GradHooks, HearABackwardThroughAWatchedOutputThatReachesNoParameter) {
  Ears ears({weight()});
  const auto input = torch::ones({2}).requires_grad_();
  auto output = input * 2;
  ears.hooks.watch(output);
  output.sum().backward();
  EXPECT_EQ(ears.counts(), heard(1, 0, 1));
}

TEST(GradHooks, IgnoreAutogradGradWhichAccumulatesNothing) {
  Ears ears({weight()});
  auto output = ears.parameters[0] * 2;
  ears.hooks.watch(output);
  torch::autograd::grad({output.sum()}, {ears.parameters[0]}, {}, true);
  EXPECT_EQ(ears.counts(), heard(0, 0, 0));
  output.sum().backward();
  EXPECT_EQ(ears.counts(), heard(1, 1, 1));
}

TEST(GradHooks, FinishOnceAtTheEndOfTheOutermostBackward) {
  // Beyond 60 levels the engine changes threads.
  for (const int depth : {0, 1, 5, 58, 59, 60, 150}) {
    Ears ears({weight(), weight()});
    const auto& p = ears.parameters;
    auto output = Checkpointed::apply(p[0] * 2, p[1], depth, false);
    ears.hooks.watch(output);
    output.sum().backward();
    const auto counts = ears.counts();
    EXPECT_EQ(counts[2], 1) << depth;
    EXPECT_EQ(counts[1], 2) << depth;  // the innermost block's and the first parameter's
  }
}

TEST(GradHooks, FinishOnceForEachBackwardOverARetainedGraph) {
  Ears ears({weight(), weight()});
  const auto& p = ears.parameters;
  auto loss = Checkpointed::apply(p[0] * 2, p[1], 1, false).sum();
  for (int i = 0; i < 3; ++i) {
    loss.backward({}, true);
    EXPECT_EQ(ears.counts()[2], 1) << i;
  }
}

TEST(GradHooks, FinishAfterTheOuterBackwardWhenAHookRunsABackwardOfItsOwn) {
  Ears ears({weight(), weight()});
  const auto& p = ears.parameters;
  auto hidden = p[0] * 2;
  hidden.register_hook([&](at::Tensor gradient) {
    const at::AutoGradMode with_graph(true);
    (p[1] * 3).sum().backward();
    EXPECT_EQ(ears.finishes, 0);
    return gradient;
  });
  hidden.sum().backward();
  EXPECT_EQ(ears.counts(), heard(0, 2, 1));
}

TEST(GradHooks, HearTheNextBackwardAfterOneThatThrew) {
  Ears ears({weight(), weight()});
  const auto& p = ears.parameters;
  EXPECT_THROW(Checkpointed::apply(p[0] * 2, p[1], 2, true).sum().backward(), std::runtime_error);
  ears.counts();
  ears.hooks.reset();
  p[0].mm(p[1]).sum().backward();
  EXPECT_EQ(ears.counts(), heard(0, 2, 1));
}

TEST(GradHooks, NoticeABackwardThatThrewWhenTheNextOneBeginsOnAnyThread) {
  Ears ears({weight(), weight()});
  const auto& p = ears.parameters;
  auto bad = Checkpointed::apply(p[0] * 2, p[1], 2, true), good = p[0].mm(p[1]);
  ears.hooks.watch(bad);
  ears.hooks.watch(good);
  for (int round = 0; round < 2; ++round) {
    EXPECT_THROW(bad.sum().backward({}, true), std::runtime_error);
    ears.counts();
    EXPECT_EQ(ears.abandoned, round);
    std::thread([&] { good.sum().backward({}, true); }).join();
    EXPECT_EQ(ears.abandoned, round + 1);
    EXPECT_EQ(ears.counts(), heard(1, 2, 1));
  }
}

TEST(GradHooks, PassAnExceptionOfFinishToTheCallerOfBackwardWithItsType) {
  const std::vector<at::Tensor> parameters{weight()};
  GradHooks hooks(parameters, {[] {}, [](std::size_t) {}, [] { throw std::out_of_range("told by finish"); }, [] {}});
  EXPECT_THROW((parameters[0] * 2).sum().backward(), std::out_of_range);
}

TEST(GradHooks, TakeAnUndefinedGradientForNone) {
  struct NoGradient : torch::autograd::Function<NoGradient> {
    static at::Tensor forward(AutogradContext*, at::Tensor x) { return x.clone(); }
    static variable_list backward(AutogradContext*, variable_list) { return {at::Tensor()}; }
  };
  Ears ears({weight()});
  NoGradient::apply(ears.parameters[0]).sum().backward();
  EXPECT_EQ(ears.counts(), heard(0, 0, 1));
  ears.parameters[0].mutable_grad() = torch::ones({3, 3});
  NoGradient::apply(ears.parameters[0]).sum().backward();
  EXPECT_EQ(ears.counts(), heard(0, 0, 1));
}

TEST(GradHooks, AreSilentOnceDestroyed) {
  const auto parameter = weight();
  auto output = parameter * 2;
  {
    Ears ears({parameter});
    ears.hooks.watch(output);
    EXPECT_TRUE(GradHooks::is_hooked(parameter));
  }
  EXPECT_FALSE(GradHooks::is_hooked(parameter));
  EXPECT_NO_THROW(output.sum().backward());
}

TEST(GradHooks, NameTheParameterThatWasConvertedInPlace) {
  torch::nn::Linear first(2, 2), second(2, 2);
  const std::vector<at::Tensor> parameters{first->weight, second->weight};
  int gradients = 0;
  GradHooks hooks(parameters, {[] {}, [&](std::size_t) { ++gradients; }, [] {}, [] {}});
  EXPECT_FALSE(hooks.first_unhooked(parameters));
  second->to(torch::kDouble);
  EXPECT_EQ(hooks.first_unhooked(parameters), 1u);
  EXPECT_FALSE(hooks.first_unhooked(parameters, 2));
  hooks.hook_again(1, second->weight);
  EXPECT_FALSE(hooks.first_unhooked(parameters));
  second->weight.sum().backward();
  EXPECT_EQ(gradients, 1);
}

}  // namespace
}  // namespace ddp
