#pragma once
/// rate_scheduler.hpp: gives any optimizer of LibTorch's the rates of a Schedule, step by step.

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <vector>

#include "ddp/schedule.hpp"

namespace ddp {

/// After n calls of step() each parameter group has its base rate times schedule(n); so has the first optimizer step,
/// with n = 0, from construction on. Base rates are those that the groups have at construction.
///
///     ddp::RateScheduler scheduler(optimizer, ddp::schedule::warm_up(500, ddp::schedule::cosine(9500)));
///     ...
///     optimizer.step();
///     scheduler.step();    // once for each optimizer step, on every rank
///
/// A step that did not happen does not count: where a gradient scaler has skipped the optimizer's step, leave out
/// scheduler.step(), too. Between calls the rates of the optimizer's groups may be read, but what is written into them
/// lasts until the next step().
///
/// A group that is added to the optimizer later keeps the rate that it came with until the next step(), and that is its
/// base rate then.
///
/// A Checkpoint keeps the number of steps, in the layout of Python's schedulers, and brings it back with restore(): the
/// base rates stay those of this run, so that a run of more ranks goes on with the rate that was scaled for them,
/// whatever the optimizer had before. With the same base rates it goes on to the bit.
///
/// Lifetime: the optimizer must outlive it. Threads: one.
class RateScheduler : public torch::optim::LRScheduler {
 public:
  /// Errors: c10::Error for an optimizer whose options have no learning rate.
  RateScheduler(torch::optim::Optimizer& optimizer, Schedule schedule);

  /// Of each parameter group, those included that were added since.
  std::vector<double> base_rates() const;
  /// Calls of step() so far, those before a resume included.
  std::int64_t steps() const noexcept { return step_count_; }
  const Schedule& schedule() const noexcept { return schedule_; }

  /// Takes these base rates, one for each group, and the rates of after `steps` calls.
  /// Errors: std::invalid_argument for another number of rates, and for steps below 0 or beyond 2^31.
  void restore(std::int64_t steps, const std::vector<double>& base_rates);

 private:
  std::vector<double> get_lrs() override;
  std::vector<double> rates_at(std::int64_t step) const;
  void apply(const std::vector<double>& rates);

  torch::optim::Optimizer& optimizer_;
  Schedule schedule_;
  std::vector<double> base_rates_;  ///< of the groups that were there at the last step
};

}  // namespace ddp
