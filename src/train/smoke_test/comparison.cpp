#include "train/smoke_test/comparison.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ddp::smoke {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double at_least_finite(double gap) { return std::isfinite(gap) ? gap : kInfinity; }

double machine_epsilon(at::ScalarType dtype) {
  if (c10::toRealValueType(dtype) == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (dtype == at::kHalf) return 0x1p-10;
  if (dtype == at::kBFloat16) return 0x1p-7;
  return std::numeric_limits<float>::epsilon();
}

// Rounding errors of a step grow from step to step: half of the digits are left for them.
double tolerance_for(const std::vector<at::Tensor>& tensors, const SmokeTestOptions& options) {
  double epsilon = 0;
  for (const auto& tensor : tensors)
    if (tensor.is_floating_point() || tensor.is_complex())
      epsilon = std::max(epsilon, machine_epsilon(tensor.scalar_type()));
  return options.tolerance.value_or(std::sqrt(epsilon));
}

}  // namespace

double largest_gap(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, at_least_finite(std::abs(a[i] - b[i]) / (1 + std::abs(b[i]))));
  return largest;
}

double largest_gap(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].numel() == 0) continue;
    const auto wide = a[i].is_complex() ? at::kComplexDouble : at::kDouble;
    const auto one = a[i].to(at::kCPU, wide), other = b[i].to(at::kCPU, wide);
    largest = std::max(largest, at_least_finite(((one - other).abs() / (1 + other.abs())).max().item<double>()));
  }
  return largest;
}

Comparison::Comparison(const SmokeSubject& subject, const SmokeTestOptions& options, const Plan& plan,
                       const RanksRun& ranks)
    : subject_(subject),
      options_(options),
      plan_(plan),
      ranks_(ranks),
      tolerance_(tolerance_for(ranks.start, options)) {}

Trial Comparison::trained(Train train, Mode mode) const {
  Trial trial(subject_, nullptr, options_);
  trial.set_tensors(ranks_.start);
  (trial.*train)(plan_, mode);
  return trial;
}

SmokeVerdict Comparison::in_turn() const {
  const auto trial = trained(&Trial::train_in_turn, Mode::training);
  const auto of_losses = largest_gap(ranks_.losses, trial.losses());
  const auto of_weights = largest_gap(ranks_.end, trial.tensors());
  const bool passed = std::max(of_losses, of_weights) <= tolerance_;
  return {passed,
          fmt::format("{} ranks {} what one process does that takes their batches in turn: losses differ by {:.1e} at "
                      "most, weights and buffers by {:.1e}{}",
                      plan_.ranks, passed ? "do" : "do NOT do", of_losses, of_weights,
                      passed ? "" : fmt::format(" (at most {:.1e} is rounding)", tolerance_))};
}

SmokeVerdict Comparison::as_a_whole(std::vector<double>& curve) const {
  const auto trial = trained(&Trial::train_as_a_whole, Mode::training);
  curve = trial.losses();
  const auto gap = largest_gap(ranks_.losses, curve);
  if (gap > tolerance_) return explained(curve, gap);
  return {true, fmt::format("one process on the whole batch has the same losses: they differ by {:.1e} at most", gap)};
}

// Between one process that takes the batches in turn and one that takes them as a whole.
double Comparison::gap_without(Mode mode) const {
  return largest_gap(trained(&Trial::train_in_turn, mode).losses(), trained(&Trial::train_as_a_whole, mode).losses());
}

SmokeVerdict Comparison::explained(const std::vector<double>& curve, double gap) const {
  const auto differ = fmt::format("one process on the whole batch has losses that differ by {:.1e}", gap);
  if (const auto ratio = curve[0] / ranks_.losses[0]; plan_.ranks > 1 && std::abs(ratio - plan_.ranks) < 0.1)
    return {false,
            fmt::format("{}: its first loss is {:.2f} times theirs, so the loss is a sum over the batch; averaged "
                        "over the ranks its gradients are those of a batch of {}; make it a mean",
                        differ, ratio, plan_.batch)};
  if (has_batch_norm(*subject_.replica(nullptr).module) && gap_without(Mode::frozen_batch_norm) <= tolerance_)
    return {true,
            fmt::format("{}; BatchNorm explains it (without its batch statistics they are the same): each rank "
                        "normalises over {} samples instead of {}; ddp::convert_sync_batchnorm() makes them equal",
                        differ, plan_.batch, plan_.batch * static_cast<std::size_t>(plan_.ranks))};
  if (gap_without(Mode::evaluation) <= tolerance_)
    return {true, differ +
                      "; layers that behave otherwise in training explain it, such as dropout or BatchNorm: with "
                      "all modules in eval() they are the same"};
  return {false, differ +
                     ", which neither BatchNorm nor dropout explain: the loss of a batch is not the mean of its "
                     "samples' losses"};
}

}  // namespace ddp::smoke
