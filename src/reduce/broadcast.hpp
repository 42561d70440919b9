#pragma once
/// broadcast.hpp: many tensors of one rank to all ranks in few messages.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ddp/process_group.hpp"

namespace ddp {

/// The tensors' bytes side by side in one message. Copies bytes, so any dtype arrives exactly.
/// Prepared once, run as often as wanted.
/// Tensors: any strides, one device; written in place without a new version for autograd, so that a
/// graph that has saved one of them stays valid. Data that was replaced meanwhile, as by torch::load(), is found.
/// Errors: std::logic_error for a tensor whose dtype or shape was changed.
class CoalescedBroadcast {
 public:
  explicit CoalescedBroadcast(const std::vector<at::Tensor>& tensors);
  /// The same in memory that is there already: uint8 [n], n >= bytes_of(tensors).
  CoalescedBroadcast(const std::vector<at::Tensor>& tensors, const at::Tensor& memory);

  /// What the message takes, padding included.
  static std::int64_t bytes_of(const std::vector<at::Tensor>& tensors);

  /// Collective. Afterwards all ranks hold rank `root`'s values. Nothing is sent where there are no tensors.
  void run(ProcessGroup& group, int root = 0);

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor bytes_;               // uint8 [n]
  std::vector<at::Tensor> slots_;  // the tensors' places inside it
};

/// Collective. The same once, in messages of about `chunk_bytes`, which bound the extra memory
/// (but for a tensor that is larger). The default costs no speed and little memory.
void broadcast_in_chunks(const std::vector<at::Tensor>& tensors, ProcessGroup& group, int root = 0,
                         std::int64_t chunk_bytes = std::int64_t{8} << 20);

}  // namespace ddp
