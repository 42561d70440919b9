#include "reduce/usage_report.hpp"

#include <string>

#include "ddp/log.hpp"
#include "reduce/fault_text.hpp"

namespace ddp {

void UsageReport::end_step(const std::vector<Parameter>& parameters, const ControlRecord& record, bool found_unused) {
  if (steps_ == kSteps) return;
  found_unused_ |= found_unused;
  for (std::size_t i = 0; i < used_.size(); ++i)
    if (record.raised(i)) used_[i] = true;
  if (++steps_ == kSteps) tell(parameters);
}

void UsageReport::tell(const std::vector<Parameter>& parameters) const {
  std::vector<std::string> dead;
  for (std::size_t i = 0; i < used_.size(); ++i)
    if (!used_[i] && parameters[i].tensor.numel() > 0) dead.push_back(named(parameters[i]));
  const auto cost = std::chrono::duration<double, std::milli>(search_time_).count() / kSteps;
  if (!found_unused_)
    log::warn(
        "find_unused_parameters: every parameter was used in each of the first {} steps, on every rank; without the "
        "option a step is "
        "{:.2f} ms shorter on this rank",
        kSteps, cost);
  if (!dead.empty())
    log::warn(
        "find_unused_parameters: no rank used {} in the first {} steps: dead weight, unless a later phase uses it",
        joined(dead), kSteps);
}

}  // namespace ddp
