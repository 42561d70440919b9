#include "reduce/bucket_plan.hpp"

#include <algorithm>
#include <optional>

namespace ddp {
namespace {

struct OpenBucket {
  c10::ScalarType dtype;
  c10::Device device;
  bool is_first = true;
  std::int64_t bytes = 0;
  std::vector<std::size_t> members = {};
};

}  // namespace

BucketPlan plan_buckets(const std::vector<ParameterLayout>& parameters, const BucketCaps& caps) {
  BucketPlan plan;
  std::vector<OpenBucket> open;  // one for each dtype and device; few
  for (std::size_t left = parameters.size(); left > 0; --left) {
    const auto& parameter = parameters[left - 1];
    auto bucket = std::find_if(open.begin(), open.end(), [&](const OpenBucket& candidate) {
      return candidate.dtype == parameter.dtype && candidate.device == parameter.device;
    });
    if (bucket == open.end()) bucket = open.insert(open.end(), {parameter.dtype, parameter.device});
    bucket->members.push_back(left - 1);
    bucket->bytes += parameter.elements * static_cast<std::int64_t>(c10::elementSize(parameter.dtype));
    if (bucket->bytes >= (bucket->is_first ? caps.first_bytes : caps.bytes)) {
      plan.push_back(std::move(bucket->members));
      *bucket = {parameter.dtype, parameter.device, false};
    }
  }
  // The walk ends with buckets below their caps: a bucket is complete where its last member stands.
  for (auto& bucket : open)
    if (!bucket.members.empty()) plan.push_back(std::move(bucket.members));
  std::stable_sort(plan.begin(), plan.end(), [](const auto& a, const auto& b) { return a.back() > b.back(); });
  return plan;
}

}  // namespace ddp
