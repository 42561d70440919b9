#pragma once
/// learning_rate.hpp: how a learning rate that suits one batch is carried over to another, above all to the global
/// batch of more ranks. docs/tuning.md has the procedure.

#include <cstdint>

namespace torch::optim {
class Optimizer;
}

namespace ddp {

enum class ScalingRule {
  /// By the ratio k of the batches: k samples' gradients are averaged, so one step has to go as far as k smaller ones.
  /// Of SGD, with a warm-up: Goyal et al. 2017 (arXiv:1706.02677), who keep it up to a batch of 8192 on ImageNet.
  linear,
  /// By the square root of k, as the noise of the mean falls. Of optimizers that divide by the size of the gradients:
  /// Krizhevsky 2014 (arXiv:1404.5997, section 5), Malladi et al. 2022 (arXiv:2205.10287) for Adam and RMSprop,
  /// You et al. 2020 (arXiv:1904.00962). Malladi et al. also scale 1 - beta by k, which is the caller's to do.
  square_root
};

/// Linear for SGD; square root for Adam, AdamW, RMSprop and Adagrad, and what is derived from them.
/// Errors: std::invalid_argument for any other optimizer, about which nothing is known here.
ScalingRule scaling_rule(const torch::optim::Optimizer& optimizer);

/// The rate for steps of `global_batch` samples, of all ranks and accumulated micro-batches together, where `base_rate`
/// suits steps of `base_batch` samples. Errors: std::invalid_argument unless all are positive and finite.
double scaled_learning_rate(double base_rate, std::int64_t base_batch, std::int64_t global_batch, ScalingRule rule);

}  // namespace ddp
