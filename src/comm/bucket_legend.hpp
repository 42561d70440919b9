#pragma once
/// bucket_legend.hpp: which parameters travel in the calls that the wrapped models make; a call's label names but two.

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/pinned_slot.hpp"

namespace ddp::comm {

struct BucketNames {
  std::string label;
  std::vector<std::string> parameters;
};

/// The buckets of a wrapped model, in force from a call on until the same wrapper's next plan.
struct NamedPlan {
  std::uint64_t from_call = 1;
  std::vector<BucketNames> buckets;
};

/// The latest plans of a group.
/// Threads: all members are safe; for_each() also in a signal's handler.
class BucketLegend {
 public:
  static constexpr std::size_t kPlans = 16;  ///< two for each of eight wrapped models; older ones are forgotten

  BucketLegend() = default;
  ~BucketLegend();
  BucketLegend(const BucketLegend&) = delete;
  BucketLegend& operator=(const BucketLegend&) = delete;

  void add(NamedPlan plan);

  /// Runs `look` on each plan, the oldest first unless one is added meanwhile.
  template <class Look>
  void for_each(Look look) const {
    const auto added = added_.load();
    for (std::size_t i = 0; i < kPlans; ++i) plans_[(added + i) % kPlans].read(look);
  }

 private:
  void drop(std::size_t place);

  std::mutex adding_;
  std::array<PinnedSlot<const NamedPlan>, kPlans> plans_;
  std::atomic<std::size_t> added_{0};
};

}  // namespace ddp::comm
