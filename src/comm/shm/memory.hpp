#pragma once
/// memory.hpp: shared memory that one rank takes for itself, and that the others reach by its offset.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/shm/mapping.hpp"
#include "comm/shm/region.hpp"

namespace ddp::comm::shm {

/// Allocates inside a rank's own region of a mapping. Threads: any.
/// Lifetime: held by std::shared_ptr, so that whoever uses memory of it can keep it.
class Memory {
 public:
  Memory(std::shared_ptr<Mapping> mapping, int rank);

  /// At least `bytes` at a page's begin: backed, mapped and zero. Null where the region has no such range.
  /// Errors: Unavailable where the memory itself is lacking.
  std::byte* allocate(std::uint64_t bytes);
  /// Gives it back to the system at once: a rank that still reads there sees zeros. Null is let pass.
  /// Errors: std::logic_error where allocate() gave no such memory.
  void free(std::byte* memory);

  Mapping& mapping() const { return *mapping_; }
  std::uint64_t allocated_bytes() const { return region_.taken_bytes(); }

 private:
  std::shared_ptr<Mapping> mapping_;
  Region region_;
};

}  // namespace ddp::comm::shm
