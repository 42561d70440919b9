// The same results as LibTorch's optimizers, over all their options and many kinds of parameters.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ddp/optim.hpp"

namespace ddp::optim {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;

// LibTorch's optimizer and ours of the same options.
struct Kind {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(const Groups&)> theirs, ours;
};

template <class Theirs, class Ours, class Options>
Kind kind(const std::string& name, const Options& options) {
  return {name, [options](const Groups& groups) { return std::make_unique<Theirs>(groups, options); },
          [options](const Groups& groups) { return std::make_unique<Ours>(groups, options); }};
}
Kind sgd(const std::string& name, const SGDOptions& options) {
  return kind<torch::optim::SGD, SGD>("SGD " + name, options);
}
Kind adam(const std::string& name, const AdamOptions& options) {
  return kind<torch::optim::Adam, Adam>("Adam " + name, options);
}
Kind adamw(const std::string& name, const AdamWOptions& options) {
  return kind<torch::optim::AdamW, AdamW>("AdamW " + name, options);
}

std::vector<Kind> all_kinds() {
  return {sgd("plain", SGDOptions(0.1)),
          sgd("decay", SGDOptions(0.1).weight_decay(0.1)),
          sgd("momentum", SGDOptions(0.05).momentum(0.9)),
          sgd("dampening", SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(0.01)),
          sgd("nesterov", SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01)),
          adam("defaults", AdamOptions()),
          adam("decay", AdamOptions(0.01).weight_decay(0.1)),
          adam("amsgrad", AdamOptions(0.01).amsgrad(true).betas({0.8, 0.9}).weight_decay(0.1)),
          adamw("defaults", AdamWOptions()),
          adamw("decay", AdamWOptions(0.01).weight_decay(0.3)),
          adamw("amsgrad", AdamWOptions(0.01).amsgrad(true).betas({0.8, 0.9}).eps(1e-3))};
}

using Tensors = std::vector<at::Tensor>;

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors)
    result.push_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor));
  return result;
}

// All sizes, layouts and dtypes that meet in a model: a pass takes some, LibTorch the others.
// Complex numbers have no largest one, which amsgrad wants.
Tensors parameters_of_all_kinds(at::ScalarType dtype, bool amsgrad) {
  torch::manual_seed(3);
  const auto with = [&](at::IntArrayRef sizes) { return torch::randn(sizes, torch::kDouble).to(dtype); };
  Tensors parameters{with({70, 33}),
                     with({5}),
                     with({}),
                     with({0, 4}),
                     with({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
                     with({9, 8}).t(),
                     with({12, 10}).slice(1, 2, 7),  // gaps
                     with({1, 6}),
                     with({40000}),
                     torch::randn({8}, torch::kBFloat16)};
  if (!amsgrad) parameters.push_back(torch::randn({4}, torch::kComplexDouble));
  return parameters;
}

// Gradients of one step, the same for both. Every third step lacks some.
void give_gradients(const Tensors& parameters, int step) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + step));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto gradient = torch::randn_like(parameters[i].detach(), at::MemoryFormat::Contiguous) * 3;
    parameters[i].mutable_grad() = step % 3 == 1 && i % 4 == 1 ? at::Tensor() : gradient;
  }
}

Groups in_two_groups(const Tensors& parameters) {
  Groups groups;
  const auto middle = parameters.begin() + static_cast<std::ptrdiff_t>(parameters.size() / 2);
  groups.emplace_back(Tensors(parameters.begin(), middle));
  groups.emplace_back(Tensors(middle, parameters.end()));
  return groups;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a.detach() - b.detach()).abs().max().item<double>();
}

TEST(OptimAgainstLibTorch, Gives100StepsOfFloat64ToTheTwelfthDigit) {
  for (const auto& kind : all_kinds()) {
    const bool amsgrad = kind.name.find("amsgrad") != std::string::npos;
    const auto theirs = parameters_of_all_kinds(at::kDouble, amsgrad), ours = copies(theirs);
    const auto their_optimizer = kind.theirs(in_two_groups(theirs)), our_optimizer = kind.ours(in_two_groups(ours));
    for (int step = 0; step < 100; ++step) {
      give_gradients(theirs, step);
      give_gradients(ours, step);
      for (auto* optimizer : {their_optimizer.get(), our_optimizer.get()})
        optimizer->param_groups()[1].options().set_lr(0.002 * (1 + step % 5));
      their_optimizer->step();
      our_optimizer->step();
    }
    for (std::size_t i = 0; i < theirs.size(); ++i)
      EXPECT_LE(distance(theirs[i], ours[i]), 1e-12) << kind.name << ", parameter " << i;
    EXPECT_EQ(our_optimizer->state().size(), their_optimizer->state().size()) << kind.name;
  }
}

// As far from the steps in float64 as LibTorch's float32 is, not farther.
TEST(OptimAgainstLibTorch, RoundsFloat32AsMuchAsLibTorchDoes) {
  for (const auto& kind : all_kinds()) {
    torch::manual_seed(5);
    const Tensors start{torch::randn({5000}), torch::randn({64, 64})};
    const auto theirs = copies(start), ours = copies(start);
    const Tensors exact{start[0].to(torch::kDouble), start[1].to(torch::kDouble)};
    const auto their_optimizer = kind.theirs({Tensors(theirs)}), our_optimizer = kind.ours({Tensors(ours)}),
               exact_optimizer = kind.theirs({Tensors(exact)});
    for (int step = 0; step < 100; ++step) {
      give_gradients(theirs, 3 * step);
      for (std::size_t i = 0; i < start.size(); ++i) {
        ours[i].mutable_grad() = theirs[i].grad().clone();
        exact[i].mutable_grad() = theirs[i].grad().to(torch::kDouble);
      }
      for (auto* optimizer : {their_optimizer.get(), our_optimizer.get(), exact_optimizer.get()}) optimizer->step();
    }
    for (std::size_t i = 0; i < start.size(); ++i) {
      const auto rms = [&](const at::Tensor& tensor) {
        return (tensor.to(torch::kDouble) - exact[i]).pow(2).mean().sqrt().item<double>();
      };
      EXPECT_LE(rms(ours[i]), 1.2 * rms(theirs[i])) << kind.name << ", parameter " << i;
      EXPECT_GT(rms(theirs[i]), 0);
    }
  }
}

TEST(OptimAgainstLibTorch, KeepsItsStateInTheSameForm) {
  const auto theirs = parameters_of_all_kinds(at::kFloat, true), ours = copies(theirs);
  torch::optim::AdamW their_optimizer(theirs, AdamWOptions().amsgrad(true));
  AdamW our_optimizer(ours, AdamWOptions().amsgrad(true));
  for (int step = 0; step < 5; ++step) {
    give_gradients(theirs, step);
    give_gradients(ours, step);
    their_optimizer.step();
    our_optimizer.step();
  }
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    using State = torch::optim::AdamWParamState;
    const auto& a = static_cast<const State&>(*their_optimizer.state().at(theirs[i].unsafeGetTensorImpl()));
    const auto& b = static_cast<const State&>(*our_optimizer.state().at(ours[i].unsafeGetTensorImpl()));
    EXPECT_EQ(a.step(), b.step()) << i;
    for (const auto& [x, y] : {std::pair{a.exp_avg(), b.exp_avg()},
                               {a.exp_avg_sq(), b.exp_avg_sq()},
                               {a.max_exp_avg_sq(), b.max_exp_avg_sq()}}) {
      EXPECT_EQ(x.sizes(), y.sizes());
      EXPECT_EQ(x.strides(), y.strides()) << i;
      EXPECT_EQ(x.scalar_type(), y.scalar_type());
      EXPECT_TRUE(torch::allclose(x, y, 1e-5, 1e-6)) << i;
    }
  }
}

// Saved by one and loaded by the other, which goes on to where the first one gets by itself.
template <class Saver, class Loader>
void expect_other_goes_on(const AdamWOptions& options) {
  torch::manual_seed(1);
  const Tensors first{torch::randn({30, 7}, torch::kDouble), torch::randn({5}, torch::kDouble)};
  Saver saver(first, options);
  const auto run = [](auto& optimizer, const Tensors& parameters, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      give_gradients(parameters, step);
      optimizer.step();
    }
  };
  run(saver, first, 0, 5);
  std::stringstream file;
  torch::save(saver, file);
  const auto second = copies(first);
  Loader loader(second, AdamWOptions(77));
  torch::load(loader, file);
  run(saver, first, 5, 12);
  run(loader, second, 5, 12);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_LE(distance(first[i], second[i]), 1e-13) << i;
}

TEST(OptimAgainstLibTorch, LoadsWhatTheOtherHasSaved) {
  for (const bool amsgrad : {false, true}) {
    const auto options = AdamWOptions(0.01).amsgrad(amsgrad);
    expect_other_goes_on<torch::optim::AdamW, AdamW>(options);
    expect_other_goes_on<AdamW, torch::optim::AdamW>(options);
    expect_other_goes_on<AdamW, AdamW>(options);
  }
}

TEST(OptimAgainstLibTorch, StepsLikeItThroughAParameterThatStandsTwiceOrSharesMemory) {
  for (const auto& kind : all_kinds()) {
    const auto run = [](const auto& make) {
      torch::manual_seed(9);
      const auto memory = torch::randn({20}, torch::kDouble);
      const auto twice = torch::randn({6}, torch::kDouble), apart = torch::randn({6}, torch::kDouble);
      const auto grid = torch::randn({2, 9}, torch::kDouble);
      const Tensors parameters{twice,
                               memory.slice(0, 0, 12),
                               apart,
                               twice,
                               memory.slice(0, 4, 8),
                               memory.slice(0, 9, 20),
                               grid.narrow(1, 2, 3),
                               grid.view({18}).slice(0, 3, 9)};
      const auto optimizer = make({Tensors(parameters)});
      for (int step = 0; step < 4; ++step) {
        give_gradients(parameters, 3 * step);
        optimizer->step();
      }
      return torch::cat({twice, memory, apart, grid.flatten()});
    };
    EXPECT_LE(distance(run(kind.theirs), run(kind.ours)), 1e-13) << kind.name;
  }
}

TEST(OptimAgainstLibTorch, TakesAGradientOfAnyLayoutAndOneThatIsShared) {
  const auto run = [](auto* of) {
    torch::manual_seed(2);
    const Tensors parameters{torch::randn({4, 6}, torch::kDouble), torch::randn({6, 4}, torch::kDouble),
                             torch::randn({4, 6}, torch::kDouble)};
    std::remove_pointer_t<decltype(of)> optimizer(parameters, AdamOptions(0.1));
    const auto gradient = torch::randn({6, 4}, torch::kDouble);
    parameters[0].mutable_grad() = gradient.t();
    parameters[1].mutable_grad() = gradient;
    parameters[2].mutable_grad() = torch::randn({4, 12}, torch::kDouble).slice(1, 0, 12, 2);
    for (int step = 0; step < 3; ++step) optimizer.step();
    return torch::cat({parameters[0], parameters[1].t(), parameters[2]});
  };
  EXPECT_LE(distance(run(static_cast<torch::optim::Adam*>(nullptr)), run(static_cast<Adam*>(nullptr))), 1e-13);
}

}  // namespace
}  // namespace ddp::optim
