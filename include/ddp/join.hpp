#pragma once
/// join.hpp: a training loop whose ranks have different numbers of batches.

#include <functional>

namespace ddp {

class DataParallelCore;

struct JoinOptions {
  /// A rank that has left its loop counts as a gradient of zeros. False: the mean is that of the ranks still in theirs.
  /// No matter with weight_by_samples, where such a rank has no samples.
  bool divide_by_initial_world_size = true;
};

/// What DistributedDataParallel's join() returns, on every rank, before the loop:
///
///     auto join = model->join();
///     for (auto& batch : *loader) {
///       optimizer.zero_grad();
///       loss(model(batch.data), batch.target).backward();
///       optimizer.step();
///     }
///     join.finish([&] { optimizer.step(); });
///
/// In the loop nothing but the wrapper may be collective, and each step has one reduced backward() through the wrapper.
/// Buffers are copied once a step, from the lowest rank that is still in its loop.
/// Lifetime: not beyond the wrapper. Destroyed without finish(), as by an exception, it communicates nothing.
class [[nodiscard]] Join {
 public:
  Join(DataParallelCore& core, const JoinOptions& options);
  Join(Join&& other) noexcept;
  Join& operator=(Join&&) = delete;
  ~Join();

  /// Collective. After the loop: takes part in the steps of the ranks that are still in theirs, until all are here.
  /// After each such step the parameters have the mean gradients and `step` is called, which does what the loop does
  /// with them: weights and the optimizer's state stay the same on all ranks. Without `step` the weights and buffers of
  /// a rank that was last in its loop are copied to all; states of optimizers then differ. In the end no rank has
  /// gradients. After a GradientError it may be called again, as the others may go on with their loops.
  /// `step` on all ranks or on none. Errors: as backward().
  void finish(const std::function<void()>& step = {});

 private:
  DataParallelCore* core_;
  JoinOptions options_;
};

}  // namespace ddp
