#pragma once
/// grad_scaler.hpp: a factor on the loss that keeps small gradients of half precision from vanishing, as Python's
/// torch.amp.GradScaler, alike on all ranks.
///
///     ddp::GradScaler scaler(model);
///     for (...) {
///       optimizer.zero_grad();
///       scaler.scale(loss).backward();
///       scaler.unscale_(optimizer);                          // only where gradients are looked at, as for clipping
///       ddp::clip_grad_norm_(model->parameters(), 1.0);
///       if (scaler.step(optimizer)) scheduler.step();
///       scaler.update();
///     }

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "ddp/checkpoint_value.hpp"

namespace torch::optim {
class Optimizer;
}

namespace ddp {

class ProcessGroup;

/// Defaults are Python's.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  /// So many steps in a row without an infinite gradient let the scale grow.
  std::int64_t growth_interval = 2000;
  /// false: the scale stays init_scale. Steps with gradients that are not finite are skipped all the same.
  bool dynamic = true;
  /// false: nothing is scaled or skipped, as for bfloat16, which needs none of it.
  bool enabled = true;
};

/// A gradient that is infinite or NaN on one rank is so in the mean, hence on all: each rank sees it there, skips the
/// step and lowers its scale, without a message. Only where an optimizer holds parameters that the wrapper does not
/// average do step() and unscale_() ask the other ranks, in one small all-reduce. The scale of each rank's loss travels
/// with the gradients: where they differ, backward() is a GradientError on every rank.
///
/// With Join, the step that is given to finish() has step() and update() in it, as the loop.
/// Threads: one. Lifetime: the wrapper and the optimizers must outlive it.
class GradScaler {
 public:
  /// For a run of one process. Errors: std::invalid_argument for a scale that is not above zero, a growth factor not
  /// above 1, a backoff factor not between 0 and 1, an interval below 1.
  explicit GradScaler(const GradScalerOptions& options = {});
  /// For a DistributedDataParallel.
  template <class Model>
    requires requires(const Model& model, at::Tensor tensor) { model->averages(tensor); }
  explicit GradScaler(const Model& model, const GradScalerOptions& options = {}) : GradScaler(options) {
    auto* wrapper = model.ptr().get();
    wrapper_ = {.group = wrapper->group(),
                .averages = [wrapper](const at::Tensor& parameter) { return wrapper->averages(parameter); },
                .tell_scale = [wrapper](float scale) { wrapper->set_loss_scale(scale); }};
  }

  /// The loss times the scale.
  at::Tensor scale(const at::Tensor& loss);
  /// Divides the gradients of this optimizer's parameters by the scale, before step(). Errors: std::logic_error if
  /// called twice in a step.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// The optimizer's step, unless a gradient is not finite. True if it was done. Gradients are unscaled by then; but
  /// those of an optimizer of optim.hpp that were not yet stay as they are, for its own pass unscales them on the way.
  /// Errors: std::logic_error if called twice before update().
  bool step(torch::optim::Optimizer& optimizer);
  /// After all optimizers' steps: the scale of the next step. Errors: std::logic_error before any step().
  void update();

  /// 1 where it is not enabled.
  double current_scale() const noexcept;
  bool is_enabled() const noexcept { return options_.enabled; }

  /// For Checkpoint::add("scaler", scaler.state()): under the names of Python's state_dict(), which it loads as well.
  /// Loading replaces the options as in Python, but for a scaler that is fixed or not enabled, which stays as it is.
  /// Lifetime: refers to this.
  CheckpointValue state();

 private:
  struct Wrapper {
    std::shared_ptr<ProcessGroup> group;
    std::function<bool(const at::Tensor& parameter)> averages;
    std::function<void(float scale)> tell_scale;
  };
  struct OfOptimizer {
    bool is_unscaled = false;
    bool has_stepped = false;
    bool found_inf = false;
  };

  bool unscale(const torch::optim::Optimizer& optimizer) const;
  bool agree(const torch::optim::Optimizer& optimizer, bool found_inf) const;
  void back_off();
  void grow();

  GradScalerOptions options_;
  float scale_;
  std::int64_t growth_tracker_ = 0;  // steps without an infinite gradient since the scale has changed
  Wrapper wrapper_;
  std::unordered_map<const torch::optim::Optimizer*, OfOptimizer> optimizers_;  // of this step
};

}  // namespace ddp
