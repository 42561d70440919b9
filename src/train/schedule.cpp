#include "ddp/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddp {
namespace {

bool is_factor(double factor) { return std::isfinite(factor) && factor >= 0; }

void require_steps(const char* name, std::int64_t steps) {
  if (steps < 1)
    throw std::invalid_argument(std::string("schedule: ") + name + " is " + std::to_string(steps) +
                                ", but it takes one step at least");
}

void require_factor(const char* name, double factor) {
  if (!is_factor(factor))
    throw std::invalid_argument(std::string("schedule: ") + name + " is " + std::to_string(factor) +
                                ", but a factor is finite and not negative");
}

// How much of `steps` is done, 0 to 1.
double share(std::int64_t step, std::int64_t steps) {
  return static_cast<double>(std::min(step, steps)) / static_cast<double>(steps);
}

}  // namespace

Schedule::Schedule(std::function<double(std::int64_t)> factor, std::optional<std::int64_t> length)
    : factor_(std::move(factor)), length_(length) {
  if (!factor_) throw std::invalid_argument("schedule: needs a function");
  if (length_) require_steps("its length", *length_);
}

double Schedule::operator()(std::int64_t step) const {
  if (step < 0) throw std::invalid_argument("schedule: steps are counted from 0, not " + std::to_string(step));
  const double factor = factor_(step);
  if (!is_factor(factor))
    throw std::domain_error("schedule: the factor of step " + std::to_string(step) + " is " + std::to_string(factor) +
                            ", but a factor is finite and not negative");
  return factor;
}

namespace schedule {

Schedule constant() {
  return Schedule([](std::int64_t) { return 1.0; });
}

Schedule cosine(std::int64_t steps, double final_factor) {
  require_steps("cosine's length", steps);
  require_factor("cosine's final_factor", final_factor);
  const auto factor = [=](std::int64_t step) {
    if (step >= steps) return final_factor;
    return final_factor + (1 - final_factor) * (1 + std::cos(std::numbers::pi * share(step, steps))) / 2;
  };
  return Schedule(factor, steps);
}

Schedule linear_decay(std::int64_t steps, double final_factor) {
  require_steps("linear_decay's length", steps);
  require_factor("linear_decay's final_factor", final_factor);
  return Schedule([=](std::int64_t step) { return std::lerp(1.0, final_factor, share(step, steps)); }, steps);
}

Schedule step_decay(std::int64_t every, double gamma) {
  require_steps("step_decay's `every`", every);
  require_factor("step_decay's gamma", gamma);
  return Schedule([=](std::int64_t step) { return std::pow(gamma, static_cast<double>(step / every)); });
}

Schedule multi_step(std::vector<std::int64_t> milestones, double gamma) {
  require_factor("multi_step's gamma", gamma);
  std::int64_t before = 0;
  for (const auto milestone : milestones) {
    if (milestone <= before)
      throw std::invalid_argument("schedule: multi_step's milestone " + std::to_string(milestone) + " comes after " +
                                  std::to_string(before) + ", but they are positive and ascending");
    before = milestone;
  }
  return Schedule([milestones = std::move(milestones), gamma](std::int64_t step) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return std::pow(gamma, static_cast<double>(passed));
  });
}

Schedule warm_up(std::int64_t steps, Schedule then, std::optional<double> start_factor) {
  require_steps("warm_up's length", steps);
  const double start = start_factor.value_or(1.0 / static_cast<double>(steps + 1));
  require_factor("warm_up's start_factor", start);
  auto length = then.length();
  if (length) *length += steps;
  const auto factor = [=, then = std::move(then)](std::int64_t step) {
    return step < steps ? then(0) * std::lerp(start, 1.0, share(step, steps)) : then(step - steps);
  };
  return Schedule(factor, length);
}

}  // namespace schedule
}  // namespace ddp
