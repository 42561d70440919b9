// Where a fused step's memory lies, and that neither that nor the number of threads changes a bit of the result.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "ddp/optim.hpp"
#include "reduce/side_by_side.hpp"

namespace ddp::optim {
namespace {

using Tensors = std::vector<at::Tensor>;
using State = torch::optim::AdamWParamState;

// 90,000 elements in all, in three chunks of a pass.
Tensors some_parameters() {
  torch::manual_seed(6);
  return {torch::randn({300, 100}), torch::randn({17}), torch::randn({200, 150}), torch::randn({1}),
          torch::randn({29982})};
}

Tensors laid_side_by_side(const Tensors& tensors) {
  auto laid = side_by_side(tensors);
  for (std::size_t i = 0; i < laid.size(); ++i) laid[i].copy_(tensors[i]);
  return laid;
}

void give_gradients(const Tensors& parameters, int step, bool flat = false) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  Tensors gradients;
  for (const auto& parameter : parameters) gradients.push_back(torch::randn_like(parameter));
  if (flat) gradients = laid_side_by_side(gradients);
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
}

State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  return static_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

bool lie_side_by_side(const Tensors& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (static_cast<char*>(tensors[i - 1].data_ptr()) + tensors[i - 1].nbytes() != tensors[i].data_ptr()) return false;
  return true;
}

Tensors means_of(torch::optim::Optimizer& optimizer, const Tensors& parameters) {
  Tensors means;
  for (const auto& parameter : parameters) means.push_back(state_of(optimizer, parameter).exp_avg());
  return means;
}

Tensors run(const Tensors& parameters, bool flat_gradients = false) {
  AdamW optimizer(parameters, AdamWOptions(0.01));
  optimizer.set_max_grad_norm(1);
  for (int step = 0; step < 4; ++step) {
    give_gradients(parameters, step, flat_gradients);
    optimizer.step();
  }
  return parameters;
}

void expect_equal(const Tensors& a, const Tensors& b, const char* what) {
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << what << ' ' << i;
}

TEST(OptimMemory, HasTheSameBitsByAnyNumberOfThreads) {
  const auto before = torch::get_num_threads();
  torch::set_num_threads(1);
  const auto expected = run(some_parameters());
  for (const int threads : {2, 3, 7}) {
    torch::set_num_threads(threads);
    expect_equal(run(some_parameters()), expected, "threads");
  }
  torch::set_num_threads(before);
}

TEST(OptimMemory, HasTheSameBitsWhereverParametersAndGradientsLie) {
  const auto expected = run(some_parameters());
  expect_equal(run(laid_side_by_side(some_parameters())), expected, "parameters side by side");
  expect_equal(run(laid_side_by_side(some_parameters()), true), expected, "gradients, too");
  const auto parameters = some_parameters();
  const auto laid = laid_side_by_side({parameters.rbegin(), parameters.rend()});
  expect_equal(run({laid.rbegin(), laid.rend()}), expected, "in the other order");
}

TEST(OptimMemory, LaysStatesInTheOrderOfTheParametersInMemory) {
  const auto parameters = some_parameters();
  const auto laid = laid_side_by_side({parameters.rbegin(), parameters.rend()});
  const Tensors in_list_order{laid.rbegin(), laid.rend()};
  AdamW optimizer(in_list_order);
  give_gradients(in_list_order, 0);
  optimizer.step();
  EXPECT_TRUE(lie_side_by_side(means_of(optimizer, laid)));
}

TEST(OptimMemory, LaysStatesAnewThatCameFromElsewhere) {
  const auto parameters = laid_side_by_side(some_parameters());
  AdamW optimizer(parameters);
  give_gradients(parameters, 0, true);
  optimizer.step();
  for (const auto& parameter : parameters) {
    auto& state = state_of(optimizer, parameter);
    state.exp_avg(state.exp_avg().clone());
  }
  ASSERT_FALSE(lie_side_by_side(means_of(optimizer, parameters)));
  const auto plain = some_parameters();
  AdamW reference(plain);
  give_gradients(plain, 0);
  reference.step();
  give_gradients(parameters, 1, true);
  give_gradients(plain, 1);
  optimizer.step();
  reference.step();
  EXPECT_TRUE(lie_side_by_side(means_of(optimizer, parameters)));
  expect_equal(parameters, plain, "after it");
}

TEST(OptimMemory, GivesEachStateAStorageOfItsOwn) {
  const auto parameters = some_parameters();
  AdamW optimizer(parameters);
  give_gradients(parameters, 0);
  optimizer.step();
  for (const auto& parameter : parameters)
    EXPECT_EQ(state_of(optimizer, parameter).exp_avg().storage().nbytes(), parameter.nbytes());
}

}  // namespace
}  // namespace ddp::optim
