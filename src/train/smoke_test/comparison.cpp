#include "train/smoke_test/comparison.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/rand_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/formatted.hpp"

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

// A path from another place in the model to the same rounding differs by more than one, and by chance.
constexpr double kSeveral = 20;

// Each number times 1 + epsilon or 1 - epsilon.
std::vector<at::Tensor> moved_by(const std::vector<at::Tensor>& tensors, double epsilon) {
  std::vector<at::Tensor> moved;
  for (const auto& tensor : tensors) {
    const bool is_number = tensor.is_floating_point() || tensor.is_complex();
    moved.push_back(is_number ? tensor * (1 + epsilon * at::rand_like(tensor).sub(0.5).sign()) : tensor);
  }
  return moved;
}

double sum_of(const std::vector<Trial::Portion>& portions) {
  double sum = 0;
  for (const auto& [loss, samples] : portions) sum += loss.item<double>() * static_cast<double>(samples);
  return sum;
}

// The coarsest of them.
double epsilon_of(const std::vector<at::Tensor>& tensors) {
  double epsilon = 0;
  for (const auto& tensor : tensors)
    if (tensor.is_floating_point() || tensor.is_complex())
      epsilon = std::max(epsilon, machine_epsilon(tensor.scalar_type()));
  return epsilon;
}

}  // namespace

double gap(double a, double b) { return at_least_finite(std::abs(a - b) / (1 + std::abs(b))); }

double largest_gap(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, gap(a[i], b[i]));
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
      epsilon_(epsilon_of(ranks.start)),
      tolerance_(options.tolerance.value_or(std::sqrt(epsilon_))) {}  // half of the digits are left to rounding

Comparison::Trained Comparison::trained(Train train, Mode mode, const std::vector<at::Tensor>& start) const {
  Trial trial(subject_, nullptr, options_);
  trial.set_tensors(start);
  (trial.*train)(plan_, mode);
  return {trial.losses(), trial.tensors()};
}

// Rounding errors grow from step to step, in some models beyond any bound. How far, shows a run whose first weights
// differ in their last digit: at no step may the two lie farther apart than a few times as much.
bool Comparison::alike(const Trained& one, const Trained& other, Train train, Mode mode) const {
  const auto of_weights = [](const auto& a, const auto& b) { return a.empty() || b.empty() ? 0 : largest_gap(a, b); };
  const auto weights_gap = of_weights(one.tensors, other.tensors);
  if (std::max(largest_gap(one.losses, other.losses), weights_gap) <= tolerance_) return true;
  const auto straight = trained(train, mode, ranks_.start);
  const auto moved = trained(train, mode, moved_by(ranks_.start, std::max(epsilon_, tolerance_ * tolerance_)));
  double rounding = 0;
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    rounding = std::max(rounding, gap(moved.losses[step], straight.losses[step]));
    if (!(gap(one.losses[step], other.losses[step]) <= std::max(tolerance_, kSeveral * rounding))) return false;
  }
  return weights_gap <= std::max(tolerance_, kSeveral * of_weights(moved.tensors, straight.tensors));
}

SmokeVerdict Comparison::in_turn() const {
  const auto one_process = trained(&Trial::train_in_turn, Mode::training, ranks_.start);
  const bool passed = alike({ranks_.losses, ranks_.end}, one_process, &Trial::train_in_turn, Mode::training);
  return {passed, formatted("{} ranks {} what one process does that takes their batches in turn: losses differ by "
                            "{:.1e} at most, weights and buffers by {:.1e}",
                            plan_.ranks, passed ? "do" : "do NOT do", largest_gap(ranks_.losses, one_process.losses),
                            largest_gap(ranks_.end, one_process.tensors))};
}

SmokeVerdict Comparison::as_a_whole(std::vector<double>& curve) const {
  curve = trained(&Trial::train_as_a_whole, Mode::training, ranks_.start).losses;
  if (!alike({ranks_.losses, {}}, {curve, {}}, &Trial::train_as_a_whole, Mode::training)) return explained(curve);
  const auto largest = largest_gap(ranks_.losses, curve);
  return {true, formatted("one process on the whole batch has the same losses: they differ by {:.1e} at most{}",
                          largest, largest > tolerance_ ? ", as they do by rounding alone in this model" : "")};
}

// One process that takes the batches in turn and one that takes them as a whole.
bool Comparison::alike_without(Mode mode) const {
  const auto in_turn = trained(&Trial::train_in_turn, mode, ranks_.start);
  const auto whole = trained(&Trial::train_as_a_whole, mode, ranks_.start);
  return alike({in_turn.losses, {}}, {whole.losses, {}}, &Trial::train_as_a_whole, mode);
}

bool Comparison::is_random() const {
  Trial trial(subject_, nullptr, options_);
  return trial.draws_random_numbers(plan_.steps[0][0]);
}

SmokeVerdict Comparison::explained(const std::vector<double>& curve) const {
  const auto differ =
      formatted("one process on the whole batch has losses that differ by {:.1e}", largest_gap(ranks_.losses, curve));
  if (const auto ratio = curve[0] / ranks_.losses[0]; plan_.ranks > 1 && std::abs(ratio - plan_.ranks) < 0.1)
    return {false, formatted("{}: its first loss is {:.2f} times theirs, so the loss is a sum over the batch; averaged "
                             "over the ranks its gradients are those of a batch of {}; make it a mean",
                             differ, ratio, plan_.batch)};
  const auto plain = subject_.replica(nullptr).module;
  if (!options_.sync_batch_norm && has_batch_norm(*plain) && alike_without(Mode::frozen_batch_norm))
    return {true, formatted("{}; BatchNorm explains it (without its batch statistics they are the same): each rank "
                            "normalises over {} samples instead of {}; ddp::convert_sync_batchnorm() makes them equal",
                            differ, plan_.batch, plan_.batch * static_cast<std::size_t>(plan_.ranks))};
  if (!options_.sync_batch_norm && has_untracked_batch_norm(*plain))
    return {true, differ +
                      "; it has BatchNorm without running statistics, which no run can do without, so that other "
                      "reasons cannot be ruled out"};
  if (alike_without(Mode::evaluation))
    return {true, differ +
                      "; layers that behave otherwise in training explain it, such as dropout or BatchNorm: with "
                      "all modules in eval() they are the same"};
  if (is_random())
    return {true, differ +
                      "; the dataset or the loss draws random numbers, which fall differently in other batches, so "
                      "that other reasons cannot be ruled out"};
  return {false, differ +
                     ", which neither BatchNorm nor dropout explain: the loss of a batch is not the mean of its "
                     "samples' losses"};
}

SmokeVerdict Comparison::evaluation(double loss, const std::vector<Samples>& portions, bool once) const {
  Trial trial(subject_, nullptr, options_);
  trial.set_tensors(ranks_.end);
  double sum = 0;
  for (const auto& of_rank : portions) sum += sum_of(trial.evaluate(of_rank, plan_.batch));
  Samples all(plan_.samples);
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto count = static_cast<double>(plan_.samples);
  const auto in_turn = sum / count, in_order = sum_of(trial.evaluate(all, plan_.batch)) / count;
  const auto counts = formatted("the evaluation {} each of the {} samples once; its loss is {:.6f}",
                                once ? "counts" : "does NOT count", plan_.samples, loss);
  if (!once || gap(loss, in_turn) > tolerance_) return {false, formatted("{}, in one process {:.6f}", counts, in_turn)};
  if (gap(loss, in_order) <= tolerance_) return {true, formatted("{}, in one process {:.6f}", counts, in_order)};
  const auto text = formatted("{}, in one process {:.6f}, but {:.6f} where that takes them in other portions", counts,
                              in_turn, in_order);
  if (has_untracked_batch_norm(*subject_.replica(nullptr).module))
    return {true, text + ", as BatchNorm without running statistics does"};
  if (is_random()) return {true, text + ", as random numbers in the dataset or the loss do"};
  return {false, text + ": the loss of a batch is not the mean of its samples' losses"};
}

}  // namespace ddp::smoke
