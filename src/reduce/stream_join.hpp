#pragma once
/// stream_join.hpp: brings a stream behind others that have worked on the same memory.

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

}  // namespace ddp
