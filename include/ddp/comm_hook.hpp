#pragma once
/// comm_hook.hpp: another way of averaging a bucket of gradients than a plain all-reduce.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace ddp {

class ProcessGroup;

/// A bucket whose gradients are complete on this rank.
struct GradBucket {
  /// This rank's share of the mean, [elements]: the sum over the ranks is the mean, which is written here in place.
  const at::Tensor& gradients;
  std::size_t index;  ///< of the bucket in its step; the order of calls, too
  const std::string& label;
};

/// Given to DistributedDataParallelOptions::comm_hook. What the ranks must agree on travels beside the buckets then, so
/// a hook may do to a bucket what it wants: less precise numbers, fewer of them, or other routes.
/// Threads: launch() from whatever thread runs backward, one call at a time. Lifetime: one hook for one wrapper, if it
/// has a state of its own.
class CommHook {
 public:
  virtual ~CommHook() = default;

  /// What ranks compare: they must all use the same hook.
  virtual std::string name() const = 0;

  /// Collective: called on every rank for the same buckets in the same order. Starts the communication of `bucket` and
  /// returns what completes it: called once all buckets are under way, in their order, it waits and leaves the mean in
  /// bucket.gradients. An exception out of either breaks the wrapper and leaves backward().
  virtual std::function<void()> launch(ProcessGroup& group, GradBucket bucket) = 0;

  /// What the hook keeps from step to step on this rank, such as what rounding has left, for a Checkpoint; None:
  /// nothing.
  virtual c10::IValue state() const { return {}; }
  /// Checks what state() has returned before, and returns what puts it in place. Errors: std::exception; then a
  /// checkpoint loads nothing.
  virtual std::function<void()> stage(const c10::IValue& saved);
};

/// Sends float gradients as half or bfloat16: half the bytes. Each rank's share is rounded once, before the sum.
/// Values beyond 65504 / world size in a share become infinite with fp16; bf16 keeps float's range and 8 bits of
/// precision. Buckets of half types travel as they are; double becomes the half type, complex is left as it is.
std::shared_ptr<CommHook> fp16_compression();
std::shared_ptr<CommHook> bf16_compression();

/// Sends nothing and leaves each rank its own share, so the replicas drift apart: for measuring what communication
/// costs, never for training.
std::shared_ptr<CommHook> no_communication();

}  // namespace ddp
