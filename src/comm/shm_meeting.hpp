#pragma once
/// shm_meeting.hpp: whether the ranks of a group can share memory; they find out by sharing it.

#include <memory>
#include <string>

#include "comm/backend.hpp"
#include "comm/shm/memory.hpp"

namespace ddp::comm {

struct ShmVerdict {
  std::shared_ptr<shm::Memory> memory;  ///< on all ranks or on none
  std::string why_not;                  ///< the same on all ranks
};

/// Collective. Rank 0 makes the memory and hands it over to the others, who prove in this way to be on its host.
ShmVerdict share_memory(const BackendSetup& setup);

}  // namespace ddp::comm
