#pragma once
/// training.hpp: networks, data and the oracle for tests of data-parallel training: one process on the
/// whole batch in float64.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace ddp::testing {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

inline std::unique_ptr<torch::optim::Optimizer> sgd_with_momentum(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9));
}
inline std::unique_ptr<torch::optim::Optimizer> adamw(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
}

/// Four layers, [n, 8] to [n, 4]; float64 unless said otherwise. Equal seeds give equal weights.
struct PerceptronImpl : torch::nn::Module {
  explicit PerceptronImpl(std::uint64_t seed = 7, torch::Dtype dtype = torch::kDouble) {
    torch::manual_seed(seed);
    for (const auto& [in, out] : {std::pair{8, 16}, {16, 12}, {12, 10}, {10, 4}}) {
      layers.push_back(register_module("layer" + std::to_string(layers.size()), torch::nn::Linear(in, out)));
    }
    to(dtype);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) x = i == 0 ? layers[i](x) : layers[i](torch::tanh(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Perceptron);

/// Layers with buffers, [n, 8] to [n, 4], float64.
struct BatchNormedImpl : torch::nn::Module {
  BatchNormedImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 6));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(6, 4));
};

/// Two linear layers, of which forward uses one or both.
struct BranchImpl : torch::nn::Module {
  torch::nn::Linear used = register_module("used", torch::nn::Linear(3, 3));
  torch::nn::Linear idle = register_module("idle", torch::nn::Linear(3, 3));
  torch::Tensor forward(torch::Tensor x, bool both) { return both ? idle(used(x)) : used(x); }
};
TORCH_MODULE(Branch);

/// Inputs [rows, 8] and targets [rows, 4] of one step, the same on every rank.
struct Batch {
  torch::Tensor input, target;

  static Batch of_step(std::int64_t step, std::int64_t rows, torch::Dtype dtype = torch::kDouble) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
    return {torch::randn({rows, 8}, torch::kDouble).to(dtype), torch::randn({rows, 4}, torch::kDouble).to(dtype)};
  }
  /// The rows of one rank; `rows` must divide evenly.
  Batch of_rank(int rank, int world_size) const {
    return {input.chunk(world_size)[rank], target.chunk(world_size)[rank]};
  }
};

inline torch::Tensor squared_error(const torch::Tensor& output, const torch::Tensor& target) {
  return (output - target).pow(2).mean();
}

/// Two layers of one weight. Once `slot` is where the last one's mean will appear, the first one's backward waits until
/// `mean` is there: only a reduction that runs beside the backward can bring it. Gives up after 10 s.
struct WaitsForMeanImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    auto hidden = x * first;
    hidden.register_hook([this](const torch::Tensor&) {
      if (!slot.defined()) return;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!came() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      came_in_time = came();
    });
    return hidden * last;
  }
  bool came() const { return slot.item<double>() == mean; }

  torch::Tensor slot;
  double mean = 0;
  bool came_in_time = false;
  torch::Tensor first = register_parameter("first", torch::ones({1}));
  torch::Tensor last = register_parameter("last", torch::ones({1}));
};

/// Collective. Two steps of a wrapped WaitsForMean; true if the second one's mean came while its backward ran.
template <class Model>
bool averages_while_backward_runs(Model& model, WaitsForMeanImpl& net, int rank) {
  model(torch::full({1}, 5.0 + rank)).sum().backward();
  net.slot = net.last.grad();
  net.mean = 1.5;
  net.zero_grad();
  model(torch::full({1}, 1.0 + rank)).sum().backward();
  return net.came_in_time && net.first.grad().template item<double>() == 1.5;
}

/// |a - b| <= tolerance * (|b| + 1), and the same dtype and shape.
inline bool close(const torch::Tensor& a, const torch::Tensor& b, double tolerance) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && torch::allclose(a, b, tolerance, tolerance);
}

inline void expect_same_gradients(const torch::nn::Module& net, const torch::nn::Module& reference,
                                  double tolerance = 1e-12) {
  const auto expected = reference.named_parameters();
  for (const auto& entry : net.named_parameters())
    EXPECT_TRUE(close(entry.value().grad(), expected[entry.key()].grad(), tolerance)) << entry.key();
}

}  // namespace ddp::testing
