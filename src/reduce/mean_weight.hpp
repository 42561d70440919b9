#pragma once
/// mean_weight.hpp: how much this rank's gradients count in the mean.

#include <cstdint>

#include "reduce/bucket.hpp"

namespace ddp {

/// The mean is the sum over the ranks of weight x gradient / the sum of the weights. The sum is known only when the
/// step's control record has arrived, so gradients are scaled on their way into the buckets with the sum expected, that
/// of the step before, and corrected where that was wrong. Equal weights of 1 are the plain mean, without correction.
class MeanWeight {
 public:
  /// `divided_by`: what the collective divides the sum by on its way.
  explicit MeanWeight(int ranks, int divided_by)
      : expected_(static_cast<double>(ranks)), divided_by_(divided_by), scale_(divided_by_ / expected_) {}

  void expect(std::uint64_t total) { change(own_, total > 0 ? static_cast<double>(total) : expected_); }
  void set_own(std::uint64_t own) { change(own, expected_); }

  std::uint64_t own() const { return own_; }
  std::uint64_t expected() const { return static_cast<std::uint64_t>(expected_); }
  /// For this rank's gradients.
  const Scale& scale() const { return scale_; }

  /// What the reduced buckets are to be multiplied with, when the sum of the weights turned out to be `total`.
  double correction(std::uint64_t total) const {
    return total > 0 ? expected_ / static_cast<double>(total) : 1;  // nobody counted: all zeros
  }

 private:
  void change(std::uint64_t own, double expected) {
    if (own == own_ && expected == expected_) return;
    own_ = own;
    expected_ = expected;
    scale_ = Scale(static_cast<double>(own_) * divided_by_ / expected_);
  }

  double expected_;
  double divided_by_;
  std::uint64_t own_ = 1;
  Scale scale_;
};

}  // namespace ddp
