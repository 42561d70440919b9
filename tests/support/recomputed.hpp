#pragma once
/// recomputed.hpp: activation checkpointing as users of LibTorch write it: forward without a graph, and in backward
/// again with one.

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace ddp::testing {

using Block = std::function<at::Tensor(at::Tensor)>;

/// Lifetime: the block must outlive the backward.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, const Block* block) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<std::int64_t>(block);
    const at::NoGradGuard no_grad;
    return (*block)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto* block = reinterpret_cast<const Block*>(context->saved_data["block"].toInt());
    const at::AutoGradMode with_graph(true);
    (*block)(x).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

/// [n, 4] to [n, 4] in float64: a first layer, then the blocks of a call's route, of two layers each, recomputed in
/// backward.
struct RecomputedImpl : torch::nn::Module {
  explicit RecomputedImpl(int count = 3) {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(4, 4));
    for (int i = 0; i < count; ++i) {
      torch::nn::Linear a = register_module("a" + std::to_string(i), torch::nn::Linear(4, 4));
      torch::nn::Linear b = register_module("b" + std::to_string(i), torch::nn::Linear(4, 4));
      blocks.push_back([a, b](at::Tensor x) mutable { return torch::tanh(b(torch::tanh(a(x)))); });
    }
    to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x, const std::vector<int>& route) {
    x = torch::tanh(first(x));
    for (const auto i : route) x = Recompute::apply(x, &blocks.at(i));
    return x;
  }
  torch::nn::Linear first = nullptr;
  std::vector<Block> blocks;
};

}  // namespace ddp::testing
