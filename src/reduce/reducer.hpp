#pragma once
/// reducer.hpp: averages gradients over the ranks while backward() still runs.
///
/// A gradient's way: GradHooks (on_gradient) -> Bucket (put) -> LaunchQueue (full, launch) -> BucketFlight and
/// ProcessGroup (all_reduce) -> Reducer (finish) -> parameter.grad(). See docs/gradient_flow.md.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/call_plan.hpp"
#include "ddp/comm_hook.hpp"
#include "ddp/mean_taker.hpp"
#include "ddp/process_group.hpp"
#include "ddp/reducer_stats.hpp"
#include "reduce/bucket_plan.hpp"
#include "reduce/control_record.hpp"
#include "reduce/parameter.hpp"

namespace ddp {

struct ReducerOptions {
  BucketCaps caps = {};
  /// parameter.grad() shares the bucket's memory; else the mean is copied into a tensor of its own.
  bool gradient_as_bucket_view = true;
  /// A parameter without a gradient is no fault; it is looked for in the graph, so that its bucket need not wait.
  bool find_unused_parameters = false;
  /// The same, but what the first step has found holds for all later ones.
  bool static_graph = false;
  /// The ranks' gradients count by set_samples(), which each step needs.
  bool weight_by_samples = false;
  /// Buckets leave while backward still runs; else all at its end.
  bool overlap = true;
  /// What has left is worked on meanwhile, also where the backend leaves that to those who wait.
  bool in_background = true;
  /// The parameters' data lie in the order of the gradients in the buckets, from the first plan on, and anew with each.
  bool flatten_parameters = false;
  std::shared_ptr<CommHook> comm_hook = nullptr;
};

/// See Reducer::memory().
struct ReducerMemory {
  std::vector<std::string> order;        ///< of the parameters in the buckets; empty: that of registration
  std::vector<std::uint32_t> uses;       ///< of each parameter in a backward, with static_graph
  std::optional<std::uint64_t> samples;  ///< that all ranks together had in the last step, with weight_by_samples
};

/// One backward() is one reduction, unless a no_sync guard lived when it began. Every rank takes part
/// in every reduction with all its buckets, whatever happens to its own backward: a rank that missed a
/// gradient or whose backward threw says so in the control record, and then all ranks throw.
///
/// Threads: construction, arm() and backward() from one thread; the hooks may run on others.
/// Lifetime: the destructor removes the hooks and never communicates; destroy it outside backward().
class Reducer {
 public:
  /// Collective. `parameters` are distinct leaves that require gradients, on the group's device, the same on all
  /// ranks. Needs more than one rank. `record` may have fields of the caller's.
  /// Errors: std::logic_error if a parameter has a live Reducer already.
  Reducer(std::vector<Parameter> parameters, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options,
          std::shared_ptr<ControlRecord> record);
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
  /// Backwards since the last reduction that were not reduced. `anew`: forgets them if they left no gradient but zeros.
  std::int64_t micro_batches(bool anew);

  /// Collective, between backwards. From now on the control record goes ahead of the last bucket, so that it is known
  /// early whether a round holds; then each bucket's means become gradients as soon as they are there, and this taker
  /// gets them. On the CPU, and where there is a bucket; else nothing.
  void hand_means_to(std::weak_ptr<MeanTaker> taker);

  /// The number of samples behind the next reduction's gradients, with the option weight_by_samples.
  void set_samples(std::uint64_t samples);
  /// What the loss of the next reduction was multiplied by on this rank; it counts for one. A reduction of ranks that
  /// said different things, or of which some said nothing, is void, a GradientError.
  void set_loss_scale(float scale);

  /// Collective, with the other ranks' backward() or shadow(). One reduction by a rank that has left its loop: it adds
  /// zeros, which count in the divisor if `counts`, and gets the means as gradients. False, and no gradients, once all
  /// ranks have left theirs; the next reduction is an ordinary one again.
  bool shadow(bool counts);
  /// Reductions so far, void ones too; the same on all ranks.
  std::int64_t rounds() const;
  /// The lowest rank that was in its loop in the last reduction; 0 before the first.
  int lowest_active() const;

  /// Which calls over the group are this reducer's.
  const comm::CallPlan& calls() const;
  /// Bytes of all buckets.
  std::int64_t bucket_bytes() const;
  const BucketPlan& plan() const;
  /// The last reduction's.
  const ReducerStats& stats() const;

  /// What the first steps have shown and later ones go by, so that a run that goes on in other processes adds in the
  /// same order; nullopt before the first.
  std::optional<ReducerMemory> memory() const;
  /// Between backwards, the same on all ranks. False, and nothing is changed, for parameters of other names.
  bool restore(const ReducerMemory& memory);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
