#include "comm/call_plan.hpp"

#include <ATen/ops/zeros.h>

#include <utility>

#include "comm/planned_calls.hpp"

namespace ddp::comm {

CallPlan::CallPlan(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), number_(++PlannedCalls::plans(*group_).made) {
  const auto live = ++PlannedCalls::plans(*group_).alive;
  bool is_alone = true;
  for (const auto& other : group_->all_gather_bytes(std::to_string(live), {.label = "wrappers that live"}))
    is_alone &= other == "1";
  PlannedCalls::plans(*group_).one_alone = is_alone;
}

CallPlan::~CallPlan() { --PlannedCalls::plans(*group_).alive; }

bool CallPlan::is_alone() const { return PlannedCalls::plans(*group_).one_alone; }

void CallPlan::require_same(int part, const std::string& label) const {
  if (is_alone()) return;
  // The number is the size, which is what the ranks compare.
  auto token = at::zeros({2 * number_ + part}, at::kByte);
  group_->all_reduce(token, ReduceOp::sum, {.label = label + " of wrapper " + std::to_string(number_)});
}

}  // namespace ddp::comm
