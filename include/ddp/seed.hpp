#pragma once
/// seed.hpp: random numbers that differ between the ranks and repeat from run to run.

#include <cstdint>

namespace ddp {

class ProcessGroup;

/// Seeds LibTorch's default generators, CPU and CUDA, with seed + rank: dropout and augmentation differ between
/// the ranks. What the ranks must have in common does not depend on it: DistributedDataParallel makes the replicas
/// equal, and DistributedSampler has a seed of its own.
void seed_all(std::uint64_t seed, const ProcessGroup& group);

}  // namespace ddp
