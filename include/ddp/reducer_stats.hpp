#pragma once
/// reducer_stats.hpp: where the time of one reduction went.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp {

/// Times count from the moment when the backward reached the module's output or its first gradient: on a device, by the
/// device's clock and work, for which reducer_stats() waits then. Of a step recorded into a graph they are the host's.
struct BucketStats {
  std::int64_t bytes = 0;
  std::size_t parameters = 0;
  std::chrono::nanoseconds full{};      ///< its last gradient had arrived; 0 where none was awaited
  std::chrono::nanoseconds launched{};  ///< its communication began: later than full where an earlier bucket was late
  std::chrono::nanoseconds done{};      ///< its communication had ended
};

/// The last complete reduction on this rank.
struct ReducerStats {
  std::int64_t step = 0;                ///< counts reductions from 1; 0: there was none yet
  std::vector<BucketStats> buckets;     ///< in the order of their launch
  std::chrono::nanoseconds backward{};  ///< end of the last gradient's work, where communication alone remains
  std::chrono::nanoseconds exposed{};   ///< from there until the means were in the gradients: what nothing has hidden
};

}  // namespace ddp
