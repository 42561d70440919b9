#pragma once
/// fake_memory.hpp: memory of the fake accelerator, and the host's memory that it can reach by itself.

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "support/fake_streams.hpp"

namespace ddp::testing {

/// What fresh memory holds, and what freed memory holds, in each byte. Floats of it are beyond 1e16.
inline constexpr unsigned char kFreshByte = 0x5a, kFreedByte = 0x5b;

/// A block belongs to the stream that was current when it was allocated. Freed, it is overwritten as soon as that
/// stream, and those that it was kept for, have done what they had been given by then, and allocated again after it.
/// Threads: all members are safe.
class FakeMemory {
 public:
  explicit FakeMemory(FakeStreams& streams) : streams_(streams) {}

  void* allocate(FakeStreamKey stream, std::size_t bytes);
  void free(void* memory);
  /// True where it is a block in use.
  bool keep_for(void* memory, FakeStreamKey stream);
  c10::CachingAllocator::Stat bytes(int device) const;
  void reset_peak(int device);

 private:
  struct Block {
    FakeStreamKey owner{};
    std::size_t bytes = 0;
    std::set<FakeStreamKey> kept_for;
  };
  void overwrite_after(const std::set<FakeStreamKey>& streams, const std::function<void()>& overwrite);

  FakeStreams& streams_;
  mutable std::mutex mutex_;
  std::map<void*, Block> blocks_;
  std::map<int, c10::CachingAllocator::Stat> bytes_;
  std::map<std::size_t, std::vector<void*>> spare_;  // never given back, so that a read of freed memory is defined
};

/// Threads: all members are safe.
class FakePinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  /// Also inside of a block.
  bool contains(const void* memory) const;
  int allocations() const;

 private:
  static void free(void* memory);

  mutable std::mutex mutex_;
  std::map<const char*, std::size_t> blocks_;
  int allocations_ = 0;
};
FakePinnedMemory& fake_pinned_memory();

}  // namespace ddp::testing
