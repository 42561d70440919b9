#include "ddp/grad_scaler.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ddp/clip_grad.hpp"
#include "ddp/log.hpp"
#include "ddp/optim.hpp"
#include "ddp/process_group.hpp"
#include "reduce/distinct_gradients.hpp"
#include "train/checkpoint/value.hpp"

namespace ddp {
namespace {

// The least whose reciprocal is finite, which gradients are multiplied by.
constexpr float kLeastScale = std::numeric_limits<float>::min();

void require(bool is_right, const char* name, double value, const char* wanted) {
  if (is_right) return;
  std::ostringstream text;
  text << "ddp: GradScaler: " << name << " is " << value << "; " << wanted << " is wanted";
  throw std::invalid_argument(text.str());
}

void require_usable(const GradScalerOptions& options) {
  const auto scale = static_cast<float>(options.init_scale);
  require(scale >= kLeastScale && std::isfinite(scale), "the scale", options.init_scale, "a normal float above 0");
  require(options.growth_factor > 1 && std::isfinite(options.growth_factor), "growth_factor", options.growth_factor,
          "more than 1");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor", options.backoff_factor,
          "between 0 and 1");
  require(options.growth_interval > 0, "growth_interval", static_cast<double>(options.growth_interval), "at least 1");
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

// Gradients are multiplied by it in float, whoever does it.
float reciprocal(float scale) { return static_cast<float>(1 / static_cast<double>(scale)); }

// LibTorch has one pass for both, of these kinds.
bool has_kernel(const at::Tensor& gradient) {
  return (gradient.is_cpu() || gradient.is_cuda()) && gradient.is_floating_point();
}

// Multiplies all by `factor`; true if one had an element that is not finite.
bool unscale_all(const std::vector<at::Tensor>& gradients, float factor) {
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> alike;
  bool found_inf = false;
  for (const auto& gradient : gradients) {
    if (has_kernel(gradient)) {
      alike[{gradient.device().str(), gradient.scalar_type()}].push_back(gradient);
    } else {
      found_inf |= !all_finite({gradient});
      gradient.mul_(factor);
    }
  }
  std::vector<at::Tensor> found;
  for (auto& [kind, list] : alike) {
    const auto options = at::TensorOptions(list[0].device()).dtype(at::kFloat);
    found.push_back(at::zeros({1}, options));
    at::_amp_foreach_non_finite_check_and_unscale_(list, found.back(), at::full({}, factor, options));
  }
  for (const auto& flag : found) found_inf |= flag.item<float>() != 0;
  return found_inf;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(static_cast<float>(options.init_scale)) {
  require_usable(options);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  if (wrapper_.tell_scale) wrapper_.tell_scale(scale_);
  return loss * scale_;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  auto& state = optimizers_[&optimizer];
  if (state.is_unscaled)
    throw std::logic_error("ddp: GradScaler: the gradients of this optimizer were unscaled in this step already");
  if (state.has_stepped) throw std::logic_error("ddp: GradScaler: unscale_() comes before step(), not after it");
  state.is_unscaled = true;
  state.found_inf = unscale(optimizer);
}

bool GradScaler::unscale(const torch::optim::Optimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  return agree(optimizer, unscale_all(distinct_gradients(parameters_of(optimizer)), reciprocal(scale_)));
}

// Averaged gradients look the same to every rank.
bool GradScaler::agree(const torch::optim::Optimizer& optimizer, bool found_inf) const {
  if (!wrapper_.group || wrapper_.group->size() == 1) return found_inf;
  bool is_same_on_all = true;
  for (const auto& parameter : parameters_of(optimizer))
    is_same_on_all &= !parameter.requires_grad() || wrapper_.averages(parameter);
  if (is_same_on_all) return found_inf;
  auto flag = at::full({1}, found_inf ? 1 : 0, at::kInt);
  wrapper_.group->all_reduce(flag, ReduceOp::max, {.label = "gradients that are not finite"});
  return flag.item<int>() != 0;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  auto& state = optimizers_[&optimizer];
  if (state.has_stepped)
    throw std::logic_error("ddp: GradScaler: step() was called for this optimizer since the last update() already");
  if (auto* fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer); fused != nullptr && !state.is_unscaled) {
    state.found_inf =
        !fused->step_if_finite(reciprocal(scale_), [&](bool finite) { return !agree(optimizer, !finite); });
    state.is_unscaled = state.has_stepped = true;
    return !state.found_inf;
  }
  if (!state.is_unscaled) unscale_(optimizer);
  state.has_stepped = true;
  if (!state.found_inf) optimizer.step();
  return !state.found_inf;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (optimizers_.empty()) throw std::logic_error("ddp: GradScaler: update() comes after step()");
  bool found_inf = false;
  for (const auto& [optimizer, state] : optimizers_) found_inf |= state.found_inf;
  optimizers_.clear();
  if (!options_.dynamic) return;
  if (found_inf)
    back_off();
  else if (++growth_tracker_ >= options_.growth_interval)
    grow();
}

void GradScaler::back_off() {
  const bool was_above_one = scale_ >= 1;
  scale_ = std::max(kLeastScale, static_cast<float>(scale_ * options_.backoff_factor));
  growth_tracker_ = 0;
  if (was_above_one && scale_ < 1)
    log::warn(
        "GradScaler: gradients are not finite though the scale has fallen to {}, so that steps are skipped one after "
        "the "
        "other: the loss, or a layer, gives infinite values or NaN by itself",
        scale_);
}

void GradScaler::grow() {
  growth_tracker_ = 0;
  const auto grown = static_cast<float>(scale_ * options_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
}

double GradScaler::current_scale() const noexcept { return options_.enabled ? scale_ : 1; }

CheckpointValue GradScaler::state() {
  return {.state = [this]() -> c10::IValue {
            auto state = checkpoint::empty_dict();
            if (!options_.enabled) return state;
            state.insert("scale", static_cast<double>(scale_));
            state.insert("growth_factor", options_.growth_factor);
            state.insert("backoff_factor", options_.backoff_factor);
            state.insert("growth_interval", options_.growth_interval);
            state.insert("_growth_tracker", growth_tracker_);
            return state;
          },
          .stage = [this](const c10::IValue& saved) -> std::function<void()> {
            const checkpoint::Place place(saved, "scaler");
            if (place.dict().empty() || !options_.enabled || !options_.dynamic) return [] {};
            auto loaded = options_;
            loaded.init_scale = place.at("scale").number();
            loaded.growth_factor = place.at("growth_factor").number();
            loaded.backoff_factor = place.at("backoff_factor").number();
            loaded.growth_interval = place.at("growth_interval").integer();
            require_usable(loaded);
            const auto tracker = place.at("_growth_tracker").integer();
            require(tracker >= 0, "_growth_tracker", static_cast<double>(tracker), "0 or more");
            return [this, loaded, tracker] {
              options_ = loaded;
              scale_ = static_cast<float>(loaded.init_scale);
              growth_tracker_ = tracker;
              optimizers_.clear();
            };
          }};
}

}  // namespace ddp
