#pragma once
/// accumulate.hpp: a step of several micro-batches, whose gradients are averaged over the ranks once.
///
///     for (auto& batch : *loader) {
///       auto micro = ddp::accumulate(model, loader->step(), 4, loader->batches());
///       micro.backward(cross_entropy(model(batch.data), batch.target));
///       if (micro.steps()) {
///         optimizer.step();
///         optimizer.zero_grad();
///       }
///     }

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "ddp/data_parallel_core.hpp"

namespace ddp {

/// One micro-batch, from before its forward on. All but the last of a step are under no_sync().
/// Lifetime: not beyond the wrapper.
class [[nodiscard]] MicroBatch {
 public:
  /// The place of micro-batch `number` (from 1 on, of `total`) among the `per_step` of its step. Errors:
  /// std::logic_error for numbers that make no sense.
  MicroBatch(std::int64_t number, std::int64_t per_step, std::optional<std::int64_t> total);
  MicroBatch(MicroBatch&& other) noexcept;
  /// Warns of a micro-batch whose backward() was not called: the loss's own does not divide.
  ~MicroBatch();
  MicroBatch& operator=(MicroBatch&&) = delete;

  /// Divides `loss`, a mean over this micro-batch, by the number of micro-batches in this step, and adds to the
  /// gradients. In the last one of the step they become the mean over micro-batches and ranks. With a GradScaler:
  /// backward(scaler.scale(loss)). Errors: as Tensor::backward(); std::logic_error if called twice.
  void backward(const at::Tensor& loss);
  /// It is the last one of its step: the optimizer's turn.
  bool steps() const noexcept { return place_ + 1 == divisor_; }
  /// It is the first one.
  bool begins() const noexcept { return place_ == 0; }
  /// Micro-batches in this step: fewer where the epoch's are over before.
  std::int64_t divisor() const noexcept { return divisor_; }

  /// For accumulate(): the backwards that came before in this step.
  void require_predecessors(std::int64_t micro_batches) const;
  void hold(NoSync guard) { guard_.emplace(std::move(guard)); }

 private:
  std::int64_t place_;  // in its step, from 0 on
  std::int64_t divisor_;
  bool is_done_ = false;
  std::optional<NoSync> guard_;
};

/// Makes batch `number` a micro-batch, before its forward: `per_step` of them are a step of the optimizer, and what is
/// left at the end of the `total` (of an epoch: loader->batches()) is a step of its own with its true divisor. Without
/// `total`, for streams without an end, `number` counts on over everything.
///
/// `model`: a DistributedDataParallel, or a plain module in a run of one process. The same numbers on all ranks. Save
/// checkpoints where steps() is true: the gradients of a half-full step are not in them.
/// A step that is not to be completed is left by zero_grad() and a number that begins another.
/// Errors: std::logic_error for numbers that make no sense, and, among several ranks, where micro-batches of the step
/// are missing or were there twice, as after a checkpoint from inside of one.
template <class Model>
MicroBatch accumulate(Model& model, std::integral auto number, std::int64_t per_step,
                      std::optional<std::int64_t> total = std::nullopt) {
  MicroBatch micro(static_cast<std::int64_t>(number), per_step, total);
  if constexpr (requires { model->no_sync(); }) {
    if (model->group()->size() > 1) micro.require_predecessors(model->micro_batches(micro.begins()));
    if (!micro.steps()) micro.hold(model->no_sync());
  }
  return micro;
}

}  // namespace ddp
