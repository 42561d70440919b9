#pragma once
/// call_plan.hpp: who else makes planned calls over a group, and whether all ranks mean the same plan.

#include <atomic>
#include <memory>
#include <string>

#include "ddp/process_group.hpp"

namespace ddp::comm {

/// What a group knows of the plans over it.
struct PlanCounts {
  std::atomic<int> made{0}, alive{0};
  std::atomic<bool> one_alone{true};  ///< as the youngest has found
};

/// One source of planned calls over a group, from its construction to its end. Several of them could be called in
/// different orders by the ranks, whose tensors would then meet in wrong sizes.
/// Threads: one at a time.
class CallPlan {
 public:
  /// Collective.
  explicit CallPlan(std::shared_ptr<ProcessGroup> group);
  ~CallPlan();
  CallPlan(const CallPlan&) = delete;
  CallPlan& operator=(const CallPlan&) = delete;

  /// Among the plans made for the group, from 1; the same on all ranks.
  int number() const { return number_; }
  /// False while others may live beside it: where any did on any rank when the youngest was made. The same on all
  /// ranks.
  bool is_alone() const;
  /// Collective where it is not alone, silent else: before the first of the calls of one part of the plan (a forward, a
  /// backward) all ranks find out that they mean the same part of the same plan. `part` is 0 or 1.
  /// Errors: CallMismatchError on every rank.
  void require_same(int part, const std::string& label) const;

 private:
  std::shared_ptr<ProcessGroup> group_;
  int number_;
};

}  // namespace ddp::comm
