#pragma once
/// bucket_plan.hpp: which gradients travel together, decided from sizes and an order alone.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp {

/// What the planner knows of a parameter.
struct ParameterLayout {
  std::int64_t elements = 0;
  c10::ScalarType dtype = c10::kFloat;
  c10::Device device = c10::kCPU;

  std::int64_t bytes() const { return elements * static_cast<std::int64_t>(c10::elementSize(dtype)); }
};

/// Sizes at which a bucket is closed. The first bucket is small, so that communication starts early
/// in backward (PyTorch DDP's rule and defaults: 1 MiB, then 25 MiB).
struct BucketCaps {
  std::int64_t first_bytes = std::int64_t{1} << 20;
  std::int64_t bytes = std::int64_t{25} << 20;
};

/// Indices of parameters, bucket by bucket, in the order in which the buckets are launched.
using BucketPlan = std::vector<std::vector<std::size_t>>;

/// Walks the parameters in `order`, the one in which their gradients are expected, and closes a bucket once its cap is
/// reached. A bucket holds one dtype and device. Buckets stand in the order in which that walk completes them.
/// Pure: equal input gives equal plans on all ranks.
BucketPlan plan_buckets(const std::vector<ParameterLayout>& parameters, const BucketCaps& caps,
                        const std::vector<std::size_t>& order);

/// How late in a backward, whose gradients arrive in `order`, the plan's buckets leave: the sum over the buckets of
/// their bytes x the bytes that have arrived when they leave, as a part of the largest possible sum, (0, 1].
double launch_delay(const BucketPlan& plan, const std::vector<ParameterLayout>& parameters,
                    const std::vector<std::size_t>& order);

}  // namespace ddp
