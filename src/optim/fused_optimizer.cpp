#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "ddp/optim.hpp"
#include "optim/fused_step.hpp"
#include "optim/gradient_norm.hpp"
#include "optim/update_rule.hpp"

namespace ddp::optim {
namespace {

// Of doubles the sum of squares may overflow where each is finite.
bool are_finite(const std::vector<at::Tensor>& gradients, double sum_of_squares) {
  if (std::isfinite(sum_of_squares)) return true;
  return std::all_of(gradients.begin(), gradients.end(),
                     [](const at::Tensor& gradient) { return at::isfinite(gradient).all().item<bool>(); });
}

// Of a few of its elements: who changes a gradient through data(), as LibTorch's clip_grad_norm_() does, leaves its
// version as it was.
std::size_t sample_of(const at::Tensor& gradient) {
  constexpr std::int64_t kSamples = 4;
  if (!gradient.is_cpu() || !gradient.is_non_overlapping_and_dense() || gradient.numel() == 0) return 0;
  const auto* bytes = static_cast<const char*>(gradient.const_data_ptr());
  const auto size = static_cast<std::size_t>(gradient.element_size());
  std::string sampled;
  for (std::int64_t i = 0; i < kSamples; ++i)
    sampled.append(bytes + static_cast<std::size_t>(i * (gradient.numel() - 1) / (kSamples - 1)) * size, size);
  return std::hash<std::string>()(sampled);
}

}  // namespace

/// What backward() has updated already, until step() comes.
class FusedOptimizer::Taker final : public MeanTaker {
 public:
  explicit Taker(FusedOptimizer& owner) : owner_(&owner) {}

  bool wants_means() override;
  void take(const std::vector<at::Tensor>& parameters) override;

  void belong_to(FusedOptimizer& owner) { owner_ = &owner; }
  struct Taken {
    at::Tensor parameter;
    const c10::TensorImpl* gradient;  // only compared
    std::int64_t version;
    std::size_t sample;
  };
  using AllTaken = std::unordered_map<const c10::TensorImpl*, Taken>;

  /// Ends a step: what was taken in it. Errors: std::logic_error if something has changed since.
  AllTaken end_step();

 private:
  const char* change(const AllTaken& taken) const;

  FusedOptimizer* owner_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> groups_;  // of parameters that stand once
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  AllTaken taken_;
};

struct FusedOptimizer::Impl {
  std::optional<double> max_norm;
  std::optional<double> norm;
  std::shared_ptr<Taker> taker;  // null: steps are never done in backward()
};

bool FusedOptimizer::Taker::wants_means() {
  if (!taken_.empty()) {
    taken_.clear();
    throw std::logic_error(
        "step_in_backward() is on, but the optimizer's step() was not called after the reduction before; call it once "
        "for each backward() that is reduced, and let all but the last micro-batch run under no_sync(), as "
        "ddp::accumulate() does");
  }
  groups_.clear();
  options_.clear();
  auto& groups = owner_->optimizer().param_groups();
  std::vector<const c10::TensorImpl*> several;
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (const auto& parameter : groups[i].params())
      if (!groups_.emplace(parameter.unsafeGetTensorImpl(), i).second)
        several.push_back(parameter.unsafeGetTensorImpl());
  for (const auto* parameter : several) groups_.erase(parameter);
  return !owner_->impl_->max_norm;
}

void FusedOptimizer::Taker::take(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  FusedStep step(owner_->optimizer(), owner_->rule());
  if (options_.empty())
    for (const auto& group : owner_->optimizer().param_groups()) options_.push_back(group.options().clone());
  for (const auto& parameter : parameters) {
    const auto group = groups_.find(parameter.unsafeGetTensorImpl());
    if (group == groups_.end() || !parameter.grad().defined()) continue;
    step.add(group->second, parameter);
    const auto& gradient = parameter.grad();
    taken_.emplace(parameter.unsafeGetTensorImpl(),
                   Taken{parameter, gradient.unsafeGetTensorImpl(), gradient._version(), sample_of(gradient)});
  }
  step.run(1, [this] { owner_->step_as_libtorch(); });
}

const char* FusedOptimizer::Taker::change(const AllTaken& taken) const {
  if (owner_->impl_->max_norm) return "the limit of the gradients' norm was";
  for (const auto& [parameter, was] : taken) {
    const auto& gradient = was.parameter.grad();
    if (gradient.unsafeGetTensorImpl() != was.gradient || gradient._version() != was.version ||
        sample_of(gradient) != was.sample)
      return "a gradient was";
  }
  const auto& groups = owner_->optimizer().param_groups();
  for (std::size_t i = 0; i < options_.size(); ++i)
    if (i >= groups.size() || !owner_->rule().same(*options_[i], groups[i].options()))
      return "the options of a parameter group were";
  return nullptr;
}

FusedOptimizer::Taker::AllTaken FusedOptimizer::Taker::end_step() {
  auto taken = std::exchange(taken_, {});
  if (taken.empty()) return taken;
  if (const auto* changed = change(taken))
    throw std::logic_error(std::string("ddp: optim::") + owner_->rule().name() + ": " + changed +
                           " changed between backward(), in which step_in_backward() has updated the parameters by it, "
                           "and step(); change it before backward() or after step(), as a scheduler does, clip with "
                           "set_max_grad_norm(), or do without step_in_backward()");
  return taken;
}

FusedOptimizer::FusedOptimizer() : impl_(std::make_unique<Impl>()) {}
FusedOptimizer::~FusedOptimizer() = default;

// An optimizer that was moved from has no parameters, and may be asked all the same.
FusedOptimizer::FusedOptimizer(FusedOptimizer&& other) noexcept
    : impl_(std::exchange(other.impl_, std::make_unique<Impl>())) {
  if (impl_->taker) impl_->taker->belong_to(*this);
}

FusedOptimizer& FusedOptimizer::operator=(FusedOptimizer&& other) noexcept {
  if (this == &other) return *this;
  impl_ = std::exchange(other.impl_, std::make_unique<Impl>());
  if (impl_->taker) impl_->taker->belong_to(*this);
  return *this;
}

void FusedOptimizer::set_max_grad_norm(std::optional<double> max_norm) {
  if (max_norm && !(*max_norm > 0)) {
    std::ostringstream text;
    text << "ddp: optim::" << rule().name() << ": max_grad_norm is " << *max_norm << "; more than 0 is wanted";
    throw std::invalid_argument(text.str());
  }
  impl_->max_norm = max_norm;
}

std::optional<double> FusedOptimizer::grad_norm() const noexcept { return impl_->norm; }

std::shared_ptr<MeanTaker> FusedOptimizer::taker() {
  if (!impl_->taker) impl_->taker = std::make_shared<Taker>(*this);
  return impl_->taker;
}

at::Tensor FusedOptimizer::fused_step(const torch::optim::Optimizer::LossClosure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  step(1, nullptr);
  return loss;
}

bool FusedOptimizer::step_if_finite(double scale, const std::function<bool(bool all_finite)>& may_step) {
  return step(scale, may_step);
}

bool FusedOptimizer::step(double scale, const std::function<bool(bool)>& may_step) {
  const at::NoGradGuard no_grad;
  const auto taken = impl_->taker ? impl_->taker->end_step() : Taker::AllTaken();
  if (may_step && !taken.empty())
    throw std::logic_error(std::string("ddp: optim::") + rule().name() +
                           ": step_in_backward() has updated parameters by gradients of a scaled loss, for their "
                           "wrapper was not told the scale; give the GradScaler the wrapper, and an optimizer that "
                           "steps in backward() no parameters of a second one");
  FusedStep step(optimizer(), rule());
  const auto& groups = optimizer().param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (const auto& parameter : groups[i].params())
      if (taken.count(parameter.unsafeGetTensorImpl()) == 0) step.add(i, parameter);
  impl_->norm.reset();
  if (may_step || impl_->max_norm) {
    const auto gradients = step.gradients();
    const auto sum = sum_of_squares(gradients);
    if (may_step && !may_step(are_finite(gradients, sum))) return false;
    if (impl_->max_norm) {
      impl_->norm = std::sqrt(sum) * scale;
      const auto factor = *impl_->max_norm / (*impl_->norm + 1e-6);
      if (!(factor >= 1)) scale *= factor;  // a NaN goes on to all, as in clip_grad_norm_()
    }
  }
  step.run(scale, [this] { step_as_libtorch(); });
  return true;
}

}  // namespace ddp::optim
