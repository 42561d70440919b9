#pragma once
/// training_plan.hpp: what batch sizes, accumulation and epochs come to over all ranks: the global batch that the
/// learning rate has to suit, and the optimizer steps that a schedule has to last.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ddp/checkpoint_value.hpp"

namespace ddp {

class ProcessGroup;
class RateScheduler;

struct TrainingPlanOptions {
  std::size_t local_batch = 0;  ///< samples of this rank in one backward; ranks may have different ones
  std::int64_t accumulate = 1;  ///< backwards of this rank for one optimizer step
  std::size_t batches = 0;      ///< of this rank in an epoch: loader->batches(), before a checkpoint is loaded
  std::int64_t epochs = 1;
  /// Optimizer steps of the whole run, where it ends after so many and not after epochs.
  std::optional<std::int64_t> steps = std::nullopt;
};

/// The numbers that all ranks share. A resumed run makes the same plan, from its beginning on.
///
///     const ddp::TrainingPlan plan({.local_batch = 64, .batches = loader->batches(), .epochs = 10}, *group);
///     const auto rate = ddp::scaled_learning_rate(0.1, 256, plan.global_batch(), ddp::ScalingRule::linear);
///     torch::optim::SGD optimizer(model->parameters(), rate);
///     ddp::RateScheduler scheduler(optimizer, ddp::schedule::cosine(plan.steps()));
///     plan.report(scheduler);
///     checkpoint.add("plan", plan.checkpoint_value(scheduler));
///
/// Threads: one; const calls from any.
class TrainingPlan {
 public:
  /// Collective. Errors: ConfigError on every rank where one has a 0 or a number beyond 2^31, or where the ranks differ
  /// in epochs or steps.
  TrainingPlan(const TrainingPlanOptions& options, ProcessGroup& group);

  /// Samples of this rank in one backward.
  std::int64_t local_batch() const noexcept { return local_batch_; }
  /// Samples of all ranks in one optimizer step.
  std::int64_t global_batch() const noexcept { return global_batch_; }
  /// Optimizer steps in an epoch, that of a remainder of micro-batches included; of the rank with the most, whose steps
  /// the others take as well (join()).
  std::int64_t steps_per_epoch() const noexcept { return steps_per_epoch_; }
  /// Optimizer steps in the whole run.
  std::int64_t steps() const noexcept { return steps_; }

  /// One line on rank 0 with all of this and the scheduler's base rates; a warning there if its schedule has another
  /// length than the run.
  void report(const RateScheduler& scheduler) const;

  /// Keeps global batch and base rates in a Checkpoint, which then warns on load, on rank 0, where the file's global
  /// batch is another one and its base rates are the same as here. This run's plan stays.
  CheckpointValue checkpoint_value(const RateScheduler& scheduler) const;

 private:
  std::string batches_in_words() const;
  std::string length_in_words() const;

  std::int64_t local_batch_;
  std::int64_t accumulate_;
  int ranks_;
  std::int64_t smallest_batch_ = 0;  ///< local batch of any rank
  std::int64_t largest_batch_ = 0;
  std::int64_t global_batch_ = 0;
  std::int64_t steps_per_epoch_ = 0;
  std::int64_t epochs_;
  std::int64_t steps_ = 0;
  bool ends_by_steps_;
};

}  // namespace ddp
