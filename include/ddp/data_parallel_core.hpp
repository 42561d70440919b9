#pragma once
/// data_parallel_core.hpp: what DistributedDataParallel does, whatever the module's type.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "ddp/process_group.hpp"

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

  const std::shared_ptr<ProcessGroup>& group() const;
  /// Bytes held for gradient buckets on this rank; 0 in a world of one.
  std::int64_t bucket_bytes() const;

 private:
  friend class NoSync;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
