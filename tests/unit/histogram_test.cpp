#include "report/histogram.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace ddp::report {
namespace {

using Values = std::vector<double>;

Histogram of(const Values& values) {
  Histogram histogram;
  histogram.add(values);
  return histogram;
}

TEST(Histogram, EdgesAreSymmetricAndGrowByATenth) {
  const auto& edges = histogram_edges();
  EXPECT_TRUE(std::is_sorted(edges.begin(), edges.end()));
  EXPECT_EQ(edges.size(), 1549U);  // as many as Python's SummaryWriter has
  EXPECT_EQ(edges[774], 0);
  EXPECT_EQ(edges[775], 1e-12);
  EXPECT_EQ(edges.front(), -edges.back());
}

TEST(Histogram, BeginsWithAnEmptyBucketAndEndsWithTheLastThatIsNot) {
  const auto buckets = of({0, 0, 5}).buckets();
  ASSERT_EQ(buckets.limits.size(), buckets.counts.size());
  EXPECT_EQ(buckets.limits.front(), 0);
  EXPECT_EQ(buckets.counts.front(), 0);
  EXPECT_EQ(buckets.counts[1], 2);
  EXPECT_EQ(buckets.counts.back(), 1);
  EXPECT_GT(buckets.limits.back(), 5);
  EXPECT_LE(buckets.limits[buckets.limits.size() - 2], 5);
}

TEST(Histogram, CountsEveryFiniteValueAlsoBeyondTheEdges) {
  const Values values{-1e300, -1e21, -3, -1e-13, 0, 1e-13, 0.5, 3, 1e21};
  const auto histogram = of(values);
  const auto counts = histogram.buckets().counts;
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0.0), 9);
  EXPECT_EQ(histogram.finite(), 9);
  EXPECT_EQ(histogram.min(), -1e300);
  EXPECT_EQ(histogram.max(), 1e21);
}

TEST(Histogram, AddsUpPiecesAndCountsWhatIsNotFiniteApart) {
  auto histogram = of({1, NAN, 2});
  histogram.add(Values{INFINITY, -4, -INFINITY});
  EXPECT_EQ(histogram.finite(), 3);
  EXPECT_EQ(histogram.not_finite(), 3);
  EXPECT_EQ(histogram.sum(), -1);
  EXPECT_EQ(histogram.sum_of_squares(), 21);
  EXPECT_EQ(histogram.min(), -4);
  EXPECT_EQ(histogram.max(), 2);
}

TEST(Histogram, OfOneValueHasOneFilledBucket) {
  for (const double value : {0.0, -7.0, 1e-30, 1e19}) {
    const auto buckets = of({value}).buckets();
    EXPECT_EQ(buckets.counts, (Values{0, 1})) << value;
    EXPECT_LE(buckets.limits[0], value);
    EXPECT_GT(buckets.limits[1], value);
  }
}

}  // namespace
}  // namespace ddp::report
