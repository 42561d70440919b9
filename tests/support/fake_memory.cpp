#include "support/fake_memory.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace ddp::testing {

namespace {
// As allocators of devices align.
constexpr std::size_t kAlignment = 512;
}  // namespace

void* FakeMemory::allocate(FakeStreamKey stream, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  auto& spare = spare_[bytes];
  void* memory = nullptr;
  if (spare.empty()) {
    memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (memory == nullptr) throw std::bad_alloc();
  } else {
    memory = spare.back();
    spare.pop_back();
  }
  std::memset(memory, kFreshByte, bytes);
  blocks_[memory] = {stream, bytes, {}};
  bytes_[stream.device].increase(bytes);
  return memory;
}

void FakeMemory::free(void* memory) {
  Block block;
  {
    const std::lock_guard lock(mutex_);
    block = blocks_.extract(memory).mapped();
    bytes_[block.owner.device].decrease(block.bytes);
  }
  auto streams = block.kept_for;
  streams.insert(block.owner);
  overwrite_after(streams, [this, memory, bytes = block.bytes] {
    std::memset(memory, kFreedByte, bytes);
    const std::lock_guard lock(mutex_);
    spare_[bytes].push_back(memory);
  });
}

void FakeMemory::overwrite_after(const std::set<FakeStreamKey>& streams, const std::function<void()>& overwrite) {
  const auto missing = std::make_shared<std::atomic<std::size_t>>(streams.size());
  const auto arrive = [missing, overwrite] {
    if (--*missing == 0) overwrite();
    return true;
  };
  for (const auto& stream : streams) {
    const auto end = streams_.end(stream);
    const auto behind = streams_.add(stream, arrive);
    if (streams_.is_done(stream, end)) streams_.advance(stream, behind);
  }
}

bool FakeMemory::keep_for(void* memory, FakeStreamKey stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) return false;
  found->second.kept_for.insert(stream);
  return true;
}

c10::CachingAllocator::Stat FakeMemory::bytes(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = bytes_.find(device);
  return found == bytes_.end() ? c10::CachingAllocator::Stat() : found->second;
}

void FakeMemory::reset_peak(int device) {
  const std::lock_guard lock(mutex_);
  bytes_[device].reset_peak();
}

c10::DataPtr FakePinnedMemory::allocate(std::size_t bytes) {
  auto* const memory = static_cast<char*>(std::malloc(bytes));
  if (memory == nullptr && bytes != 0) throw std::bad_alloc();
  std::memset(memory, kFreshByte, bytes);
  const std::lock_guard lock(mutex_);
  blocks_[memory] = bytes;
  ++allocations_;
  return {memory, memory, &free, c10::Device(c10::DeviceType::CPU)};
}

void FakePinnedMemory::free(void* memory) {
  auto& all = fake_pinned_memory();
  {
    const std::lock_guard lock(all.mutex_);
    all.blocks_.erase(static_cast<char*>(memory));
  }
  std::free(memory);
}

bool FakePinnedMemory::contains(const void* memory) const {
  const auto* const byte = static_cast<const char*>(memory);
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(byte);
  if (found == blocks_.begin()) return false;
  --found;
  return byte == found->first || byte < found->first + found->second;
}

int FakePinnedMemory::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

FakePinnedMemory& fake_pinned_memory() {
  static auto* const memory = new FakePinnedMemory;  // tensors may outlive what is static
  return *memory;
}

}  // namespace ddp::testing
