#pragma once
/// reducer.hpp: averages gradients over the ranks while backward() still runs.
///
/// A gradient's way: GradHooks (on_gradient) -> Bucket (put, full) -> LaunchQueue (launch) ->
/// ProcessGroup (all_reduce) -> Reducer (finish) -> parameter.grad(). See docs/gradient_flow.md.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/process_group.hpp"
#include "reduce/bucket_plan.hpp"
#include "reduce/parameter.hpp"

namespace ddp {

struct ReducerOptions {
  BucketCaps caps = {};
  /// parameter.grad() shares the bucket's memory; else the mean is copied into a tensor of its own.
  bool gradient_as_bucket_view = true;
};

/// One backward() is one reduction, unless a no_sync guard lived when it began. Every rank takes part
/// in every reduction with all its buckets, whatever happens to its own backward: a rank that missed a
/// gradient or whose backward threw says so in the last bucket, and then all ranks throw.
///
/// Threads: construction, arm() and backward() from one thread; the hooks may run on others.
/// Lifetime: the destructor removes the hooks and never communicates; destroy it outside backward().
class Reducer {
 public:
  /// `parameters` are distinct leaves that require gradients, on the group's device, the same on all
  /// ranks. Needs more than one rank. Errors: std::logic_error if a parameter has a live Reducer already.
  Reducer(std::vector<Parameter> parameters, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Before each forward with gradients. Settles a backward that has thrown: collective
  /// then, with the ranks that still wait in theirs.
  /// Hooks parameters again whose data was replaced by like data, as torch::load() does.
  /// Errors: std::logic_error names a parameter whose dtype, device or shape was changed after construction.
  void arm();
  /// Sees a backward through `output` even if it reaches no parameter.
  void watch(const at::Tensor& output);

  /// While the depth is above zero, a backward that begins is not reduced.
  void enter_no_sync();
  void leave_no_sync();
  bool synchronises() const;

  /// Bytes of all buckets.
  std::int64_t bucket_bytes() const;
  const BucketPlan& plan() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
