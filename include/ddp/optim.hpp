#pragma once
/// optim.hpp: LibTorch's SGD, Adam and AdamW, each step in one pass over memory.
///
///     ddp::optim::AdamW optimizer(model->parameters(), ddp::optim::AdamWOptions(1e-3).weight_decay(0.1));
///
/// In place of torch::optim's, with or without a process group.

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/mean_taker.hpp"

namespace ddp::optim {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

class UpdateRule;
/// How torch::optim's optimizer of that type updates a parameter.
template <class LibTorchs>
const UpdateRule& rule_of();
template <>
const UpdateRule& rule_of<torch::optim::SGD>();
template <>
const UpdateRule& rule_of<torch::optim::Adam>();
template <>
const UpdateRule& rule_of<torch::optim::AdamW>();

/// What the optimizers below have beside what torch::optim's have.
class FusedOptimizer {
 public:
  virtual ~FusedOptimizer();
  FusedOptimizer(FusedOptimizer&& other) noexcept;
  FusedOptimizer& operator=(FusedOptimizer&& other) noexcept;

  /// From now on step() takes gradients times min(1, max_norm / (norm + 1e-6)), as clip_grad_norm_() would leave them,
  /// where norm is the 2-norm of all gradients of this optimizer: a pass that reads them, and none that writes them.
  /// Only gradients that go to LibTorch's own step are changed. nullopt: no limit. Errors: std::invalid_argument for a
  /// limit that is not above zero.
  void set_max_grad_norm(std::optional<double> max_norm);
  /// The norm of the gradients in the last step(), before the limit and without the factor of a GradScaler; nullopt
  /// where it had none to form.
  std::optional<double> grad_norm() const noexcept;

  /// Collective. From now on parameters whose gradients this wrapper averages are updated in its backward(), each
  /// bucket's as soon as its mean is there and all ranks are known to have their gradients, while other buckets are
  /// still on their way. step() is called as ever, does what is left to do, and gives the same results. Where there is
  /// more to be known first, as with set_max_grad_norm(), a GradScaler of this wrapper or join(), everything waits for
  /// step(); and so does a parameter that stands in the groups twice.
  /// On the CPU; on a device, and in a world of one, nothing changes.
  /// Errors: std::logic_error of step() for gradients, options or a limit that were changed since backward(), and for a
  /// GradScaler that the wrapper was not told of; GradientError for a backward() before the step() of the one before.
  /// Lifetime: ends with the optimizer or with the wrapper.
  template <class Model>
    requires requires(Model& model, std::shared_ptr<MeanTaker> taker) { model->hand_means_to(taker); }
  void step_in_backward(Model& model) {
    model->hand_means_to(taker());
  }

  /// For GradScaler. The step with all gradients times `scale`, unless `may_step`, which is told whether all of them
  /// are finite, says no. Returns what it said.
  bool step_if_finite(double scale, const std::function<bool(bool all_finite)>& may_step);

 protected:
  FusedOptimizer();
  at::Tensor fused_step(const torch::optim::Optimizer::LossClosure& closure);

 private:
  struct Impl;
  class Taker;

  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual const UpdateRule& rule() const = 0;
  virtual void step_as_libtorch() = 0;

  std::shared_ptr<MeanTaker> taker();
  bool step(double scale, const std::function<bool(bool all_finite)>& may_step);

  std::unique_ptr<Impl> impl_;
};

/// Same options, parameter groups, schedulers, saved form and results as LibTorch's, to rounding; the bits do not
/// depend on the processor or the number of threads. float32 and float64 on the CPU, dense in memory, take one pass
/// over gradient, parameter and state, by all of LibTorch's threads; any other parameter takes LibTorch's own step.
/// A step counts as a change in place: a graph that was kept from before it cannot be gone back through.
/// Errors: std::runtime_error for a sparse gradient, before step() changes anything.
template <class LibTorchs>
class Fused : public LibTorchs, public FusedOptimizer {
 public:
  using LibTorchs::LibTorchs;

  at::Tensor step(typename LibTorchs::LossClosure closure = nullptr) override { return fused_step(closure); }

 private:
  torch::optim::Optimizer& optimizer() override { return *this; }
  const UpdateRule& rule() const override { return rule_of<LibTorchs>(); }
  void step_as_libtorch() override { LibTorchs::step(); }
};

using SGD = Fused<torch::optim::SGD>;
using Adam = Fused<torch::optim::Adam>;
using AdamW = Fused<torch::optim::AdamW>;

}  // namespace ddp::optim
