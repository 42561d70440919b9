#pragma once
/// gradient_pack.hpp: gradients on a device that are brought into their slots together, not one by one.

#include <ATen/core/Tensor.h>

#include <vector>

#include "reduce/scale.hpp"
#include "reduce/stream_join.hpp"

namespace ddp {

/// slots[i] = gradients[i] x factor, on the current stream, for tensors of one dtype that lie alike in pairs; the slots
/// share a storage. False, and nothing is done, where it cannot.
using PackFunction = bool (*)(at::TensorList slots, at::TensorList gradients, double factor);

/// The one for a device; null where there is none. Loads what it needs: not while a graph is captured.
PackFunction pack_function(at::Device device);

/// What waits to be packed into one bucket.
/// Tensors: strided ones. Right for any strides and dtypes; fast where both are the slot's.
/// Threads: one at a time.
class GradientPack {
 public:
  /// Without a function the operators of LibTorch do it.
  GradientPack(at::Device device, PackFunction function);

  /// Keeps the gradient until pack(). The current stream is the one that has produced it.
  void put(const at::Tensor& slot, const at::Tensor& gradient, const Scale& scale);
  bool is_empty() const { return pieces_.empty(); }
  /// On the current stream, behind those that produced the gradients. Their memory is not used again before that.
  void pack();

 private:
  struct Piece {
    at::Tensor slot;
    at::Tensor gradient;
    Scale scale;
    c10::Stream producer;
  };
  /// Pieces with one factor that lie in memory as their slots do.
  struct Batch {
    Scale scale;
    std::vector<at::Tensor> slots;
    std::vector<at::Tensor> gradients;
  };

  std::vector<Batch> sort_out() const;
  void run(const Batch& batch) const;

  PackFunction function_;
  StreamJoin producers_;
  std::vector<Piece> pieces_;
};

}  // namespace ddp
