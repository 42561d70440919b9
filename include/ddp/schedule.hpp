#pragma once
/// schedule.hpp: which share of its base rate an optimizer has at each step; pure functions of the step's number, so
/// that no order of calls and no resume can make them drift. rate_scheduler.hpp applies them.
///
///   using namespace ddp::schedule;
///   const auto schedule = warm_up(500, cosine(9500));          // 10,000 optimizer steps
///   const auto trapezoid = warm_up(500, warm_up(8000, linear_decay(1500), 1.0));

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace ddp {

/// A factor for each global optimizer step, counted from 0: step 0 is the first one, not what comes after it.
class Schedule {
 public:
  /// `factor` depends on its argument alone. `length`: steps after which it is at its end; unset: it has none.
  /// Errors: std::invalid_argument for no function or a length below 1.
  explicit Schedule(std::function<double(std::int64_t step)> factor, std::optional<std::int64_t> length = std::nullopt);

  /// Errors: std::invalid_argument for a step below 0, std::domain_error for a factor that is negative or not finite.
  double operator()(std::int64_t step) const;
  std::optional<std::int64_t> length() const noexcept { return length_; }

 private:
  std::function<double(std::int64_t)> factor_;
  std::optional<std::int64_t> length_;
};

/// Each begins with 1, and one with a length stays at its last factor afterwards.
/// Errors: std::invalid_argument for steps below 1 and for factors that are negative or not finite.
namespace schedule {

Schedule constant();
/// Half a cosine from 1 down to `final_factor` (Loshchilov and Hutter 2016, arXiv:1608.03983, without restarts).
Schedule cosine(std::int64_t steps, double final_factor = 0);
/// In equal parts from 1 to `final_factor`.
Schedule linear_decay(std::int64_t steps, double final_factor = 0);
/// Times `gamma` after every `every` steps.
Schedule step_decay(std::int64_t every, double gamma = 0.1);
/// Times `gamma` from each of these steps on. They are positive and ascending, else std::invalid_argument.
Schedule multi_step(std::vector<std::int64_t> milestones, double gamma = 0.1);

/// Rises in equal parts from `start_factor` to 1, which step number `steps` has, and with which `then` begins.
/// Unset: 1 / (steps + 1), so that the first step counts as well. Times what `then` begins with; 1 holds that.
Schedule warm_up(std::int64_t steps, Schedule then = constant(), std::optional<double> start_factor = std::nullopt);

}  // namespace schedule
}  // namespace ddp
