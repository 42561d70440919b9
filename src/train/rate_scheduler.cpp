#include "ddp/rate_scheduler.hpp"

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddp {

RateScheduler::RateScheduler(torch::optim::Optimizer& optimizer, Schedule schedule)
    : LRScheduler(optimizer), optimizer_(optimizer), schedule_(std::move(schedule)) {
  base_rates_ = base_rates();
  apply(rates_at(0));
}

std::vector<double> RateScheduler::base_rates() const {
  auto rates = base_rates_;
  const auto& groups = optimizer_.param_groups();
  for (auto group = rates.size(); group < groups.size(); ++group) rates.push_back(groups[group].options().get_lr());
  return rates;
}

void RateScheduler::restore(std::int64_t steps, const std::vector<double>& base_rates) {
  if (steps < 0 || steps > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("rate scheduler: cannot go on after " + std::to_string(steps) + " steps");
  if (base_rates.size() != optimizer_.param_groups().size())
    throw std::invalid_argument("rate scheduler: was given " + std::to_string(base_rates.size()) + " base rates for " +
                                std::to_string(optimizer_.param_groups().size()) + " parameter groups");
  base_rates_ = base_rates;
  step_count_ = static_cast<unsigned>(steps);
  apply(rates_at(steps));
}

// What LRScheduler::step() puts in place before it counts.
std::vector<double> RateScheduler::get_lrs() {
  base_rates_ = base_rates();
  return rates_at(steps() + 1);
}

std::vector<double> RateScheduler::rates_at(std::int64_t step) const {
  auto rates = base_rates_;
  const double factor = schedule_(step);
  for (auto& rate : rates) rate *= factor;
  return rates;
}

void RateScheduler::apply(const std::vector<double>& rates) {
  for (std::size_t group = 0; group < rates.size(); ++group)
    optimizer_.param_groups()[group].options().set_lr(rates[group]);
}

}  // namespace ddp
