#pragma once
/// bucket.hpp: one flat tensor and the slots in it, one for each gradient that travels in it.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "reduce/gradient_pack.hpp"
#include "reduce/same_memory.hpp"
#include "reduce/scale.hpp"
#include "reduce/stream_join.hpp"

namespace ddp {

/// On the CPU everything happens at once. On another device gradients wait to be packed together, and several streams
/// may write: each comes behind the ones before it, and settle() brings the current one behind them all.
/// Tensors: slot views have the parameter's sizes and, where it is dense, its strides. They share the
/// bucket's storage without being autograd views, so that `detach_()` on a gradient works. Gradients of any strides;
/// sparse ones are made dense.
/// Threads: one at a time; the reducer's lock covers it.
class Bucket {
 public:
  /// Gives `bytes` zeroed bytes, uint8 [bytes].
  using Allocate = std::function<at::Tensor(std::int64_t bytes)>;

  /// `parameters` share dtype and device. `extra` elements of the same dtype follow the slots.
  Bucket(const std::vector<at::Tensor>& parameters, const Allocate& allocate, std::int64_t extra = 0);

  /// Writes gradient x scale into the slot; in place where the gradient is the slot already.
  void put(std::size_t slot, const at::Tensor& gradient, const Scale& scale);
  /// Adds gradient x scale to the slot.
  void add(std::size_t slot, const at::Tensor& gradient, const Scale& scale);
  /// Writes zeros into the slot.
  void clear(std::size_t slot);
  /// Whatever was put, added or cleared is in flat() for work that the current stream gets from here on.
  void settle();

  /// The tensor to hand out as a slot's gradient. What its holder does to it (set_data, resize_) cannot
  /// reach the slot: a tensor that does not lie in the slot any more is replaced by a new one.
  const at::Tensor& view(std::size_t slot);
  /// True if `tensor` lies in this bucket's memory.
  bool owns(const at::Tensor& tensor) const;
  /// All slots and the extra elements, [elements]; settled or not.
  at::Tensor& flat() { return flat_; }
  /// All slots, [elements].
  at::Tensor& gradients() { return gradients_; }
  /// The extra elements, [extra].
  at::Tensor& extra() { return extra_; }
  std::int64_t bytes() const { return flat_.numel() * flat_.element_size(); }

 private:
  /// What a device that works beside the host takes more.
  struct Deferred {
    explicit Deferred(at::Device device);

    GradientPack pack;
    std::vector<bool> waits;  // of each slot
    StreamJoin writers;       // since the last settle()
    c10::Stream home;         // whose memory the bucket is
  };

  void defer(std::size_t slot, const at::Tensor& gradient, const Scale& scale);
  void pack_if_waiting(std::size_t slot);
  void pack_all();
  void come_behind_writers();

  at::Tensor flat_;
  at::Tensor gradients_;
  at::Tensor extra_;
  std::vector<at::Tensor> slots_;  // never handed out
  std::vector<at::Tensor> views_;
  std::optional<Deferred> deferred_;  // none on the CPU
};

}  // namespace ddp
