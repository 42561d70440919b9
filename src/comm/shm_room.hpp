#pragma once
/// shm_room.hpp: whether /dev/shm has room for NCCL's shared memory between ranks of one host. Knows no torch.

#include <string>

namespace ddp::comm {

/// A warning where the file system at `path` has less room than `ranks` ranks of one host may take there; empty where
/// it has, where one rank is alone, and where nothing is known of it. NCCL takes segments of 9,637,888 bytes
/// (NVIDIA/nccl issues 290 and 342 show the size), at least two for each rank, and fails in the middle of its start, or
/// later by SIGBUS, where they do not fit.
std::string too_little_room(const char* path, int ranks);

}  // namespace ddp::comm
