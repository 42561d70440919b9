#pragma once
/// stream_join.hpp: brings a stream behind others that have worked on the same memory.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

namespace ddp {

/// The streams of one device that have worked on something since they were last waited for.
/// Threads: one at a time.
class StreamJoin {
 public:
  explicit StreamJoin(c10::Device device) : device_(device) {}

  c10::Stream current() const;
  /// The current stream has worked on it.
  void note();
  /// The current stream waits, on the device, for what all noted ones hold by now; they are forgotten.
  void join();

 private:
  c10::Device device_;
  std::vector<c10::Stream> streams_;
};

/// The current stream still works on `tensor`, of whatever stream its memory came from: the allocator is told. Nothing
/// in the host's memory.
void keep_for_current_stream(const at::Tensor& tensor);

}  // namespace ddp
