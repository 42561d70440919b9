#pragma once
/// data_parallel_core.hpp: what DistributedDataParallel does, whatever the module's type.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/checkpoint_value.hpp"
#include "ddp/comm_hook.hpp"
#include "ddp/mean_taker.hpp"
#include "ddp/process_group.hpp"
#include "ddp/reducer_stats.hpp"

namespace ddp {

/// Options of DistributedDataParallel, named as PyTorch's.
struct DistributedDataParallelOptions {
  /// A bucket is reduced once its gradients reach this size, in MiB.
  double bucket_cap_mb = 25;
  /// The cap of the first bucket to be reduced, in MiB: small, so that communication starts early.
  double first_bucket_cap_mb = 1;
  /// parameter.grad() shares the buckets' memory: no second copy of all gradients. A gradient that is kept
  /// beyond its step changes with the next backward; keep a clone().
  bool gradient_as_bucket_view = true;
  /// Rank 0's buffers (running means, ...) are copied to all ranks before each training forward.
  bool broadcast_buffers = true;
  /// A parameter may go without a gradient in a backward(). It counts as zero where other ranks have one, and keeps the
  /// gradient that it has, or none, where no rank has one. Costs a search of the graph in each step, which sets free
  /// the buckets of such parameters early; what the search cannot see (recomputed blocks, a loss that uses a parameter
  /// directly) is averaged all the same, somewhat later.
  bool find_unused_parameters = false;
  /// The graph is the same in each step, unused parameters and recomputed blocks included: what the first step showed
  /// saves the search. Errors: a graph that changes is a GradientError which names the parameter.
  bool static_graph = false;
  /// The mean is weighted by each rank's number of samples, which set_samples() tells before each backward() that is
  /// reduced: right for batches of different sizes whose losses are means. Else each rank counts alike.
  bool weight_by_samples = false;
  /// Parameters and buffers that each rank keeps to itself: not compared, copied or averaged. Names as in
  /// named_parameters() and named_buffers(). Errors: std::logic_error for a name that does not exist.
  std::vector<std::string> ignored_parameters = {};
  /// Parameters whose gradients have values in a few rows only and stay sparse, beside those of Embedding and
  /// EmbeddingBag with sparse(true), which are known.
  std::vector<std::string> sparse_parameters = {};
  /// Buckets leave, and are averaged, while backward still runs; else all at its end. Unset: on, unless this host has
  /// too few cores for its ranks, where communication would only take turns with the computing that it is meant to hide
  /// behind. In shared memory, averaging needs a core beside those of each rank's threads; where there is none, ranks
  /// that come to the end of their backward early do it for the others. Ranks may differ.
  std::optional<bool> overlap_communication = std::nullopt;
  /// glibc's allocator keeps what a step has freed, up to 1 GB, for the next one: that saved a third of the CPU time
  /// of a ResNet-18's step (docs/tuning.md). For the whole process, from the first wrapper on; not where a variable of
  /// glibc's own (MALLOC_TRIM_THRESHOLD_ and its like, GLIBC_TUNABLES) has chosen.
  bool keep_freed_memory = true;
  /// Moves the parameters' data so that they lie side by side, in the order of their gradients in the buckets: a pass
  /// of an optimizer of optim.hpp over parameters, gradients and state is one over long stretches of memory. Nothing
  /// else changes: not the tensors that modules and optimizers hold, not results, not files; but an address from
  /// data_ptr() may be stale after wrapping, after a Checkpoint is loaded and after the first backward(). A parameter
  /// that shares its memory with another tensor, such as a view of it, stays where it is, as rank 0 says by name; what
  /// torch::load() loads after wrapping lies by itself again. Parameters without a slot in the buckets (frozen,
  /// ignored, with sparse gradients) stay, too, and so does everything on a device. In a world of one the order is the
  /// reverse of registration's. Ranks may differ.
  bool flatten_parameters = false;
  /// The device of this rank, as PyTorch has it: a list of one number, that of the group's device, has forward() move
  /// the tensors of its arguments there. Empty: they are where the module is. Errors: std::logic_error for another
  /// number, for several (one process works on one device), and on the CPU.
  std::vector<int> device_ids = {};
  /// Where forward() leaves its results: on the device of the module, so no other number is accepted.
  std::optional<int> output_device = std::nullopt;
  /// How buckets are averaged, instead of an all-reduce of all their bytes: see comm_hook.hpp.
  std::shared_ptr<CommHook> comm_hook = nullptr;
};

/// While it lives, gradients accumulate on each rank alone; the first backward() after it averages
/// what has accumulated. Counts for a backward() that begins while it lives.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(class DataParallelCore& core);
  NoSync(NoSync&& other) noexcept;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  DataParallelCore* core_;
};

/// Threads: from the thread that trains. Lifetime: must outlive its NoSync guards.
class DataParallelCore {
 public:
  /// Collective. See DistributedDataParallel.
  DataParallelCore(torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                   const DistributedDataParallelOptions& options);
  ~DataParallelCore();
  DataParallelCore(const DataParallelCore&) = delete;
  DataParallelCore& operator=(const DataParallelCore&) = delete;

  /// Collective in training mode with gradients enabled; silent else.
  void before_forward(bool training);
  /// Sees backwards through an output of the module.
  void watch(const at::Tensor& output);
  NoSync no_sync() { return NoSync(*this); }
  void set_broadcast_buffers(bool on);
  void set_samples(std::int64_t samples);
  void set_loss_scale(float scale);

  // For ddp::Join. While it is on, ranks may leave their loops at different steps.
  void set_joining(bool on);
  /// Collective, with the other ranks' steps: one step of a rank that has left its loop, which gets the gradients.
  /// Its zeros count in the divisor if `counts`. False once all ranks have left.
  bool shadow_step(bool counts);
  /// Collective. Copies parameters and buffers of `root` to all ranks.
  void copy_from(int root);
  /// The lowest rank that was in its loop in the last step.
  int lowest_active() const;

  const std::shared_ptr<ProcessGroup>& group() const;
  /// To which inputs are moved; none: they stay.
  std::optional<at::Device> input_device() const noexcept;
  /// Bytes held for gradient buckets on this rank; 0 in a world of one.
  std::int64_t bucket_bytes() const;
  const ReducerStats& reducer_stats() const;
  /// Every rank has the same gradient of it after a reduction.
  bool averages(const at::Tensor& parameter) const;
  /// Collective. See mean_taker.hpp.
  void hand_means_to(std::weak_ptr<MeanTaker> taker);
  /// Backwards under no_sync since the last reduction; 0 in a world of one. `anew`: none where no gradient is left.
  std::int64_t micro_batches(bool anew);
  const std::shared_ptr<CommHook>& comm_hook() const noexcept;
  /// In which order gradients are added, as the first steps have shown, for a Checkpoint. Outlives this.
  CheckpointValue reducer_memory() const;

 private:
  friend class NoSync;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp
