#include "report/histogram.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>

namespace ddp::report {
namespace {

std::vector<double> make_edges() {
  std::vector<double> positive;
  double edge = 1e-12;
  while (edge < 1e20) {
    positive.push_back(edge);
    edge *= 1.1;
  }
  std::vector<double> edges;
  std::transform(positive.rbegin(), positive.rend(), std::back_inserter(edges), std::negate<>());
  edges.push_back(0);
  edges.insert(edges.end(), positive.begin(), positive.end());
  return edges;
}

}  // namespace

const std::vector<double>& histogram_edges() {
  static const std::vector<double> edges = make_edges();
  return edges;
}

Histogram::Histogram() : counts_(histogram_edges().size() - 1) {}

void Histogram::add(std::span<const double> values) {
  const auto& edges = histogram_edges();
  const auto last = static_cast<std::ptrdiff_t>(counts_.size()) - 1;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      ++not_finite_;
      continue;
    }
    const auto bucket = std::upper_bound(edges.begin(), edges.end(), value) - edges.begin() - 1;
    ++counts_[static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(bucket, 0, last))];
    ++finite_;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
    sum_ += value;
    sum_of_squares_ += value * value;
  }
}

Histogram::Buckets Histogram::buckets() const {
  const auto& edges = histogram_edges();
  const auto is_filled = [](std::int64_t count) { return count != 0; };
  const auto first = std::find_if(counts_.begin(), counts_.end(), is_filled) - counts_.begin();
  const auto end = std::find_if(counts_.rbegin(), counts_.rend(), is_filled).base() - counts_.begin();
  Buckets buckets{.limits = {edges.begin() + first, edges.begin() + end + 1}, .counts = {0}};
  buckets.counts.insert(buckets.counts.end(), counts_.begin() + first, counts_.begin() + end);
  return buckets;
}

}  // namespace ddp::report
