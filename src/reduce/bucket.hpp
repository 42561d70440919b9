#pragma once
/// bucket.hpp: one flat tensor and the slots in it, one for each gradient that travels in it.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace ddp {

/// A factor, in the two forms that arithmetic on tensors takes.
struct Scale {
  explicit Scale(double factor);
  double value;
  at::Tensor tensor;  ///< a wrapped number: it does not raise the dtype of what it multiplies
};

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

  /// The tensor to hand out as a slot's gradient. What its holder does to it (set_data, resize_) cannot
  /// reach the slot: a tensor that does not lie in the slot any more is replaced by a new one.
  const at::Tensor& view(std::size_t slot);
  /// True if `tensor` lies in this bucket's memory.
  bool owns(const at::Tensor& tensor) const;
  /// All slots and the extra elements, [elements].
  at::Tensor& flat() { return flat_; }
  /// All slots, [elements].
  at::Tensor& gradients() { return gradients_; }
  /// The extra elements, [extra].
  at::Tensor& extra() { return extra_; }
  std::int64_t bytes() const { return flat_.numel() * flat_.element_size(); }

 private:
  at::Tensor flat_;
  at::Tensor gradients_;
  at::Tensor extra_;
  std::vector<at::Tensor> slots_;  // never handed out
  std::vector<at::Tensor> views_;
};

/// True if `a` and `b` are the same elements in memory; strides of dimensions of size 1 do not count.
bool same_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace ddp
