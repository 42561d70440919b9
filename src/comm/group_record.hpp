#pragma once
/// group_record.hpp: what is known of a group without asking anybody, in a form that a signal's handler can read.

#include <array>
#include <atomic>
#include <string_view>
#include <vector>

#include "comm/bucket_legend.hpp"
#include "comm/flight_recorder.hpp"
#include "ddp/error.hpp"

namespace ddp::comm {

/// Threads: all members are safe.
class GroupRecord {
 public:
  /// `ranks`: the group's in the world, in their order.
  GroupRecord(Origin origin, std::vector<int> ranks) : origin_(origin), ranks_(std::move(ranks)) {}

  Origin origin() const noexcept { return origin_; }
  const std::vector<int>& ranks() const noexcept { return ranks_; }
  FlightRecorder& recorder() noexcept { return recorder_; }
  const FlightRecorder& recorder() const noexcept { return recorder_; }
  BucketLegend& legend() noexcept { return legend_; }
  const BucketLegend& legend() const noexcept { return legend_; }
  /// Once, as soon as it is known; cut to 15 characters.
  void name_backend(std::string_view name) noexcept {
    name.copy(backend_.data(), backend_.size() - 1);
    has_backend_ = true;
  }
  /// Empty before.
  std::string_view backend() const noexcept { return has_backend_ ? backend_.data() : ""; }

 private:
  const Origin origin_;
  const std::vector<int> ranks_;
  FlightRecorder recorder_;
  BucketLegend legend_;
  std::array<char, 16> backend_{};
  std::atomic<bool> has_backend_{false};
};

}  // namespace ddp::comm
