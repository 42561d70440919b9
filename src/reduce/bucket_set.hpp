#pragma once
/// bucket_set.hpp: all buckets of a plan, addressed by parameter.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reduce/bucket.hpp"
#include "reduce/bucket_plan.hpp"
#include "reduce/launch_queue.hpp"
#include "reduce/parameter.hpp"

namespace ddp {

/// Indices are those of the parameters; one that the plan leaves out has no slot.
/// Threads: one at a time; the reducer's lock covers it.
class BucketSet {
 public:
  /// `extra` elements follow the last bucket's slots.
  BucketSet(const std::vector<Parameter>& parameters, BucketPlan plan, const Bucket::Allocate& allocate,
            std::int64_t extra);

  std::size_t size() const { return buckets_.size(); }
  Bucket& operator[](std::size_t bucket) { return buckets_[bucket]; }
  const BucketPlan& plan() const { return plan_; }
  /// "bucket 2 of 3 (fc2.weight to fc1.bias)"
  const std::string& label(std::size_t bucket) const { return labels_[bucket]; }
  std::int64_t bytes() const;

  bool has_slot(std::size_t i) const { return places_[i].bucket != LaunchQueue::kNoBucket; }
  std::size_t bucket_of(std::size_t i) const { return places_[i].bucket; }
  /// The same for all parameters, for LaunchQueue.
  std::vector<std::size_t> bucket_of_each() const;

  /// See Bucket.
  void put(std::size_t i, const at::Tensor& gradient, const Scale& scale) { of(i).put(slot(i), gradient, scale); }
  void add(std::size_t i, const at::Tensor& gradient, const Scale& scale) { of(i).add(slot(i), gradient, scale); }
  void clear(std::size_t i) { of(i).clear(slot(i)); }
  const at::Tensor& view(std::size_t i) { return of(i).view(slot(i)); }
  /// True if `tensor` lies in the memory of any of them.
  bool own(const at::Tensor& tensor) const;

 private:
  struct Place {
    std::size_t bucket = LaunchQueue::kNoBucket;
    std::size_t slot = 0;
  };

  Bucket& of(std::size_t i) { return buckets_[places_[i].bucket]; }
  std::size_t slot(std::size_t i) const { return places_[i].slot; }

  BucketPlan plan_;
  std::vector<Place> places_;
  std::vector<Bucket> buckets_;
  std::vector<std::string> labels_;
};

}  // namespace ddp
