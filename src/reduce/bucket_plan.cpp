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

BucketPlan plan_buckets(const std::vector<ParameterLayout>& parameters, const BucketCaps& caps,
                        const std::vector<std::size_t>& order) {
  BucketPlan plan;
  std::vector<OpenBucket> open;  // one for each dtype and device; few
  for (const auto index : order) {
    const auto& parameter = parameters[index];
    auto bucket = std::find_if(open.begin(), open.end(), [&](const OpenBucket& candidate) {
      return candidate.dtype == parameter.dtype && candidate.device == parameter.device;
    });
    if (bucket == open.end()) bucket = open.insert(open.end(), {parameter.dtype, parameter.device});
    bucket->members.push_back(index);
    bucket->bytes += parameter.bytes();
    if (bucket->bytes >= (bucket->is_first ? caps.first_bytes : caps.bytes)) {
      plan.push_back(std::move(bucket->members));
      *bucket = {parameter.dtype, parameter.device, false};
    }
  }
  // The walk ends with buckets below their caps: a bucket is complete where its last member stands.
  for (auto& bucket : open)
    if (!bucket.members.empty()) plan.push_back(std::move(bucket.members));
  std::vector<std::size_t> position(parameters.size(), 0);
  for (std::size_t at = 0; at < order.size(); ++at) position[order[at]] = at;
  std::stable_sort(plan.begin(), plan.end(),
                   [&](const auto& a, const auto& b) { return position[a.back()] < position[b.back()]; });
  return plan;
}

double launch_delay(const BucketPlan& plan, const std::vector<ParameterLayout>& parameters,
                    const std::vector<std::size_t>& order) {
  std::vector<double> arrived(parameters.size(), 0);  // bytes there with and before a parameter's gradient
  double total = 0;
  for (const auto index : order) arrived[index] = total += static_cast<double>(parameters[index].bytes());
  double sum = 0, bytes_there = 0;
  for (const auto& members : plan) {
    double bytes = 0;
    for (const auto index : members) {
      if (parameters[index].elements == 0) continue;  // nobody waits for it
      bytes_there = std::max(bytes_there, arrived[index]);
      bytes += static_cast<double>(parameters[index].bytes());
    }
    sum += bytes * bytes_there;
  }
  return total > 0 ? sum / (total * total) : 1;
}

}  // namespace ddp
