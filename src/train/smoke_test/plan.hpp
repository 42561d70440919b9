#pragma once
/// plan.hpp: which samples each rank of a smoke test has in each step.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::smoke {

using Samples = std::vector<std::size_t>;

struct Plan {
  int ranks = 1;
  std::size_t samples = 0;
  std::size_t batch = 0;                    ///< of each rank
  std::vector<std::vector<Samples>> steps;  ///< by step and rank, [batch]
  Samples whole_batch(std::size_t step) const;
};

/// Epochs of a DistributedSampler over the first `samples`. Errors: std::invalid_argument for less than two samples a
/// rank, and for less than two steps.
Plan make_plan(int ranks, std::size_t samples, int steps, std::uint64_t seed);

}  // namespace ddp::smoke
