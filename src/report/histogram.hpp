#pragma once
/// histogram.hpp: how values are spread, in the buckets that TensorBoard's own writers use.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace ddp::report {

/// The edges of the buckets, ascending: 0, and 1e-12 times every power of 1.1 below 1e20 with either sign. They are
/// those of histogram.cc in TensorFlow and bins="tensorflow" in Python's SummaryWriter.
const std::vector<double>& histogram_edges();

/// Counts of finite values; a bucket holds its lower edge. Values beyond the outermost edges are in the last bucket on
/// their side. Infinities and NaN are counted apart.
class Histogram {
 public:
  Histogram();
  void add(std::span<const double> values);

  /// The buckets from the first to the last that is not empty, after an empty one that shows where they begin.
  struct Buckets {
    std::vector<double> limits;  ///< upper edges
    std::vector<double> counts;
  };
  /// There is at least one finite value.
  Buckets buckets() const;

  std::int64_t finite() const { return finite_; }
  std::int64_t not_finite() const { return not_finite_; }
  double min() const { return min_; }
  double max() const { return max_; }
  double sum() const { return sum_; }
  double sum_of_squares() const { return sum_of_squares_; }

 private:
  std::vector<std::int64_t> counts_;  ///< of the bucket that begins at each edge but the last
  std::int64_t finite_ = 0, not_finite_ = 0;
  double min_ = std::numeric_limits<double>::infinity(), max_ = -min_;
  double sum_ = 0, sum_of_squares_ = 0;
};

}  // namespace ddp::report
