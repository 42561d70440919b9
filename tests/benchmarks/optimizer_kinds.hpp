#pragma once
/// optimizer_kinds.hpp: the optimizers that are compared, with the same options in every library.

#include <torch/optim.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ddp/optim.hpp"

namespace ddp::benchmarks {

/// Adam's moves each weight about this far a step: little enough that a network that sees one batch over and over has
/// gradients to the end, and that none of their squares becomes a subnormal number, which processors are slow with.
constexpr double kAdamRate = 1e-5;
constexpr double kSgdRate = 0.01;

template <class Torchs, class Ours, class OptimizerOptions>
std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::string& library, std::vector<torch::Tensor> parameters,
                                                      const OptimizerOptions& options) {
  if (library == "torch") return std::make_unique<Torchs>(std::move(parameters), options);
  if (library == "ddp") return std::make_unique<Ours>(std::move(parameters), options);
  throw std::invalid_argument("--library " + library + " is none of torch, ddp");
}

/// `kind`: sgd, sgd_momentum, adam or adamw. `library`: torch or ddp.
inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind, const std::string& library,
                                                               std::vector<torch::Tensor> parameters) {
  using torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::SGDOptions;
  if (kind == "sgd" || kind == "sgd_momentum")
    return optimizer_of<torch::optim::SGD, optim::SGD>(library, std::move(parameters),
                                                       SGDOptions(kSgdRate).momentum(kind == "sgd" ? 0 : 0.9));
  if (kind == "adam")
    return optimizer_of<torch::optim::Adam, optim::Adam>(library, std::move(parameters), AdamOptions(kAdamRate));
  if (kind == "adamw")
    return optimizer_of<torch::optim::AdamW, optim::AdamW>(library, std::move(parameters), AdamWOptions(kAdamRate));
  throw std::invalid_argument("--optimizer " + kind + " is none of sgd, sgd_momentum, adam, adamw");
}

/// What a ddp optimizer has beside LibTorch's. Errors: std::invalid_argument for one of LibTorch's.
inline optim::FusedOptimizer& fused(torch::optim::Optimizer& optimizer) {
  auto* const ours = dynamic_cast<optim::FusedOptimizer*>(&optimizer);
  if (ours == nullptr) throw std::invalid_argument("only an optimizer of --library ddp can do that");
  return *ours;
}

}  // namespace ddp::benchmarks
