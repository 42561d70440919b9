#pragma once
/// planned_calls.hpp: collectives whose order, sizes and dtypes the ranks have agreed on before, so
/// that they need no signatures. For callers inside the library that hold such a plan.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/bucket_legend.hpp"
#include "ddp/process_group.hpp"

namespace ddp::comm {

struct PlanCounts;

struct PlannedCalls {
  /// Collective. ProcessGroup::all_reduce_async, and broadcast_async, without their exchange of signatures. Where
  /// the ranks' tensors differ in size nonetheless, the backend ends the process.
  [[nodiscard]] static Work all_reduce(ProcessGroup& group, at::Tensor& tensor, const CallOptions& options = {},
                                       ReduceOp op = ReduceOp::sum);
  /// The same for several tensors: on a device, in one launch where its engine can.
  [[nodiscard]] static std::vector<Work> all_reduce_each(ProcessGroup& group, std::vector<at::Tensor>& tensors,
                                                         const CallOptions& options, ReduceOp op);
  [[nodiscard]] static Work broadcast(ProcessGroup& group, at::Tensor& tensor, int root = 0,
                                      const CallOptions& options = {});
  /// The calls made so far are worked on from now on although nobody waits for them yet, as other backends do anyway.
  static void go_on_alone(ProcessGroup& group) noexcept;
  /// What travels in the planned calls from the next one on, for dumps: once for each plan.
  static void name_buckets(ProcessGroup& group, std::vector<BucketNames> buckets);
  /// The engine of the group's device forms means itself, so that nobody has to divide.
  static bool has_means(const ProcessGroup& group);
  /// The current stream is recorded into a graph.
  static bool is_capturing(const ProcessGroup& group);
  /// Of the plans over this group; see CallPlan.
  static PlanCounts& plans(ProcessGroup& group);
  /// Collective the first time. A group of all ranks of `group`, which lives as long: for calls in the midst of planned
  /// ones, whose places among them differ between the ranks. Null in a world of one.
  static std::shared_ptr<ProcessGroup> side_group(ProcessGroup& group);
};

}  // namespace ddp::comm
