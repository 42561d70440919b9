#pragma once
/// distributed_metric.hpp: an evaluation's numbers over the samples of all ranks: sums and counts, not means of means,
/// so that they equal those of one process, however many samples each rank has.
///
///     model->eval();    // in training mode each forward is collective, and ranks may have other numbers of batches
///     ddp::Accuracy accuracy;
///     for (auto& batch : *loader) accuracy.update(model(batch.data), batch.target);
///     const double share = accuracy.compute(*group);
///
/// A sampler that pads gives some samples twice: evaluate with `DistributedSamplerOptions::pad = false`.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ddp {

class ProcessGroup;

/// Sums of this rank, which compute() adds up over the ranks: of several metrics in one order on all ranks. Where two
/// of different classes meet, all ranks throw CallMismatchError. Copies are independent. Threads: one. Tensors:
/// arguments of any device, with or without a gradient; they are not changed.
class DistributedMetric {
 public:
  virtual ~DistributedMetric() = default;
  /// Forgets what it has seen.
  void reset();

 protected:
  /// `name`, a literal, is shown in errors; `dimensions` tells the class from others among the ranks.
  DistributedMetric(std::int64_t numbers, const char* name, std::int64_t dimensions);
  DistributedMetric(const DistributedMetric& other);
  DistributedMetric& operator=(const DistributedMetric& other);
  /// Adds to this rank's sums: [numbers], any real dtype.
  void add(const at::Tensor& values);
  /// Collective. Those of all ranks, float64 [numbers] on the CPU, the same bits on every rank; the own stay.
  at::Tensor total(ProcessGroup& group) const;

 private:
  at::Tensor sums_;  // [1, ..., numbers]
  const char* name_;
};

/// The mean over all samples.
class MeanLoss : public DistributedMetric {
 public:
  MeanLoss();
  /// `loss`: the mean over a batch of so many samples, one real number.
  /// Errors: std::invalid_argument for more elements than one, or fewer samples than none.
  void update(const at::Tensor& loss, std::int64_t samples);
  /// Collective. NaN without any sample.
  double compute(ProcessGroup& group) const;
};

/// The share of samples whose class is among the `top_k` with the highest scores; of equal scores the lower class
/// counts as the higher, and one that is not a number is above all.
class Accuracy : public DistributedMetric {
 public:
  /// Errors: std::invalid_argument for top_k < 1.
  explicit Accuracy(std::int64_t top_k = 1);
  /// `scores` [samples, classes], `target` [samples] of an integer dtype.
  /// Errors: std::invalid_argument for other shapes and for a class that does not exist.
  void update(const at::Tensor& scores, const at::Tensor& target);
  /// Collective. 0 to 1; NaN without any sample.
  double compute(ProcessGroup& group) const;

 private:
  std::int64_t top_k_;
};

/// How often each class was taken for each.
class ConfusionMatrix : public DistributedMetric {
 public:
  /// Errors: std::invalid_argument for less than one class.
  explicit ConfusionMatrix(std::int64_t classes);
  /// `predicted`: scores [samples, classes], or classes [samples] of an integer dtype; `target` [samples].
  /// Errors: std::invalid_argument for other shapes and for a class that does not exist.
  void update(const at::Tensor& predicted, const at::Tensor& target);
  /// Collective. int64 [classes, classes] on the CPU: rows are the targets', columns the predicted.
  at::Tensor compute(ProcessGroup& group) const;

 private:
  std::int64_t classes_;
};

}  // namespace ddp
