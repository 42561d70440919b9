#include "reduce/bucket_set.hpp"

#include <algorithm>
#include <utility>

#include "ddp/log.hpp"

namespace ddp {

BucketSet::BucketSet(const std::vector<Parameter>& parameters, BucketPlan plan, const Bucket::Allocate& allocate,
                     std::int64_t extra)
    : plan_(std::move(plan)), places_(parameters.size()) {
  for (std::size_t b = 0; b < plan_.size(); ++b) {
    std::vector<at::Tensor> members;
    for (std::size_t slot = 0; slot < plan_[b].size(); ++slot) {
      members.push_back(parameters[plan_[b][slot]].tensor);
      places_[plan_[b][slot]] = {b, slot};
    }
    buckets_.emplace_back(members, allocate, b + 1 == plan_.size() ? extra : 0);
    labels_.push_back("bucket " + std::to_string(b + 1) + " of " + std::to_string(plan_.size()) + " (" +
                      parameters[plan_[b].front()].name + " to " + parameters[plan_[b].back()].name + ")");
    log::detail(log::Subsystem::bucket, "{}: {} parameters, {} bytes", labels_.back(), members.size(),
                buckets_.back().bytes());
  }
}

std::int64_t BucketSet::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& bucket : buckets_) bytes += bucket.bytes();
  return bytes;
}

std::vector<std::size_t> BucketSet::bucket_of_each() const {
  std::vector<std::size_t> buckets;
  for (const auto& place : places_) buckets.push_back(place.bucket);
  return buckets;
}

bool BucketSet::own(const at::Tensor& tensor) const {
  return std::any_of(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) { return bucket.owns(tensor); });
}

}  // namespace ddp
