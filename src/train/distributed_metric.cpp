#include "ddp/distributed_metric.hpp"

#include <ATen/Functions.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/process_group.hpp"

namespace ddp {
namespace {

void require(bool holds, const char* metric, const std::string& what) {
  if (!holds) throw std::invalid_argument(std::string(metric) + ": " + what);
}

std::string sizes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  std::string text = "[";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
  return text + ']';
}

bool is_of_classes(const at::Tensor& tensor) {
  return tensor.defined() && at::isIntegralType(tensor.scalar_type(), false) && tensor.dim() == 1;
}

/// int64 [samples] on the CPU.
at::Tensor checked_classes(const at::Tensor& given, std::int64_t classes, const char* metric, const char* name) {
  const auto dtype = given.defined() ? c10::toString(given.scalar_type()) + std::string(" ") : "";
  require(is_of_classes(given), metric,
          std::string(name) + " has to be integers [samples], not " + dtype + sizes_of(given));
  auto values = given.detach().to(at::kCPU, at::kLong);
  if (values.numel() == 0) return values;
  const auto least = values.min().item<std::int64_t>(), most = values.max().item<std::int64_t>();
  require(least >= 0 && most < classes, metric,
          std::string(name) + " has class " + std::to_string(least < 0 ? least : most) + ", but the classes are 0 to " +
              std::to_string(classes - 1));
  return values;
}

at::Tensor checked_scores(const at::Tensor& scores, const at::Tensor& target, const char* metric) {
  require(scores.defined() && scores.dim() == 2 && !scores.is_complex(), metric,
          "scores have to be real [samples, classes], not " + sizes_of(scores));
  require(target.defined() && target.dim() == 1 && target.size(0) == scores.size(0), metric,
          "scores " + sizes_of(scores) + " and target " + sizes_of(target) + " have different numbers of samples");
  auto values = scores.detach().to(at::kCPU);
  return at::isFloatingType(values.scalar_type()) ? values : values.to(at::kLong);
}

/// How many classes come before each sample's target: int64 [samples].
at::Tensor rank_of_target(const at::Tensor& scores, const at::Tensor& target) {
  const auto column = target.unsqueeze(1), own = scores.gather(1, column);
  const auto classes = at::arange(scores.size(1), at::kLong).unsqueeze(0);
  const auto is_nan = scores.isnan(), own_is_nan = own.isnan();
  const auto equal = scores.eq(own).logical_or(is_nan.logical_and(own_is_nan));
  const auto above = scores.gt(own).logical_or(is_nan.logical_and(own_is_nan.logical_not()));
  return above.logical_or(equal.logical_and(classes.lt(column))).sum(1);
}

at::Tensor numbers(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble);
}

std::int64_t square_of(std::int64_t classes) {
  constexpr std::int64_t most = 1 << 16;  // whose matrix takes 32 GiB
  require(classes >= 1 && classes <= most, "ConfusionMatrix", std::to_string(classes) + " classes");
  return classes * classes;
}

double quotient(const at::Tensor& sum_and_count) {
  const auto count = sum_and_count[1].item<double>();
  return count > 0 ? sum_and_count[0].item<double>() / count : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

DistributedMetric::DistributedMetric(std::int64_t numbers, const char* name, std::int64_t dimensions) : name_(name) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(dimensions), 1);
  sizes.back() = numbers;
  sums_ = at::zeros(sizes, at::kDouble);
}

DistributedMetric::DistributedMetric(const DistributedMetric& other) : sums_(other.sums_.clone()), name_(other.name_) {}

DistributedMetric& DistributedMetric::operator=(const DistributedMetric& other) {
  sums_ = other.sums_.clone();
  name_ = other.name_;
  return *this;
}

void DistributedMetric::reset() { sums_.zero_(); }

void DistributedMetric::add(const at::Tensor& values) { sums_ += values.detach().to(at::kCPU, at::kDouble); }

at::Tensor DistributedMetric::total(ProcessGroup& group) const {
  auto sums = sums_.clone();
  group.all_reduce(sums, ReduceOp::sum, {.label = name_});
  return sums.flatten();
}

MeanLoss::MeanLoss() : DistributedMetric(2, "MeanLoss", 1) {}

void MeanLoss::update(const at::Tensor& loss, std::int64_t samples) {
  require(loss.defined() && loss.numel() == 1 && !loss.is_complex(), "MeanLoss",
          "the loss has to be one real number, not " + sizes_of(loss));
  require(samples >= 0, "MeanLoss", std::to_string(samples) + " samples");
  if (samples == 0) return;  // whose mean is no number
  const auto count = static_cast<double>(samples);
  add(numbers({loss.detach().to(at::kDouble).item<double>() * count, count}));
}

double MeanLoss::compute(ProcessGroup& group) const { return quotient(total(group)); }

Accuracy::Accuracy(std::int64_t top_k) : DistributedMetric(2, "Accuracy", 2), top_k_(top_k) {
  require(top_k >= 1, "Accuracy", "top_k is " + std::to_string(top_k));
}

void Accuracy::update(const at::Tensor& scores, const at::Tensor& target) {
  const auto values = checked_scores(scores, target, "Accuracy");
  const auto classes = checked_classes(target, values.size(1), "Accuracy", "target");
  if (classes.numel() == 0) return;
  const auto right = rank_of_target(values, classes).lt(top_k_).sum().item<std::int64_t>();
  add(numbers({static_cast<double>(right), static_cast<double>(classes.numel())}));
}

double Accuracy::compute(ProcessGroup& group) const { return quotient(total(group)); }

ConfusionMatrix::ConfusionMatrix(std::int64_t classes)
    : DistributedMetric(square_of(classes), "ConfusionMatrix", 3), classes_(classes) {}

void ConfusionMatrix::update(const at::Tensor& predicted, const at::Tensor& target) {
  constexpr const char* name = "ConfusionMatrix";
  const auto rows = checked_classes(target, classes_, name, "target");
  at::Tensor columns;
  if (is_of_classes(predicted)) {
    columns = checked_classes(predicted, classes_, name, "predicted");
    require(columns.numel() == rows.numel(), name,
            "predicted " + sizes_of(predicted) + " and target " + sizes_of(target) + " differ in length");
  } else {
    const auto scores = checked_scores(predicted, target, name);
    require(scores.size(1) == classes_, name,
            "scores " + sizes_of(predicted) + " for " + std::to_string(classes_) + " classes");
    columns = scores.argmax(1);
  }
  add(at::bincount(rows * classes_ + columns, {}, classes_ * classes_));
}

at::Tensor ConfusionMatrix::compute(ProcessGroup& group) const {
  return total(group).to(at::kLong).view({classes_, classes_});
}

}  // namespace ddp
