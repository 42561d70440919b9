#include "comm/shm/memory.hpp"

#include <stdexcept>
#include <utility>

namespace ddp::comm::shm {

Memory::Memory(std::shared_ptr<Mapping> mapping, int rank)
    : mapping_(std::move(mapping)),
      region_(mapping_->offset_of(mapping_->region(rank)), mapping_->layout().region_bytes, page_bytes()) {}

std::byte* Memory::allocate(std::uint64_t bytes) {
  const auto offset = region_.take(bytes);
  if (!offset) return nullptr;
  try {
    mapping_->populate(*offset, region_.size_of(*offset));
  } catch (...) {
    region_.give_back(*offset);
    throw;
  }
  return mapping_->data() + *offset;
}

void Memory::free(std::byte* memory) {
  if (memory == nullptr) return;
  if (!mapping_->contains(memory, 1)) throw std::logic_error("memory that was not taken from this mapping");
  const auto offset = mapping_->offset_of(memory);
  mapping_->release(offset, region_.size_of(offset));
  region_.give_back(offset);
}

}  // namespace ddp::comm::shm
