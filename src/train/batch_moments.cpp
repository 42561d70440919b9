#include "train/batch_moments.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <tuple>
#include <vector>

namespace ddp {
namespace {

/// float64 [1 + 2 channels]: the count, then mean and variance of each channel.
at::Tensor own_moments(const at::Tensor& input) {
  const auto channels = input.size(1);
  const auto options = input.options().dtype(at::kDouble);
  if (input.numel() == 0) return at::zeros({1 + 2 * channels}, options);
  std::vector<std::int64_t> others;
  for (std::int64_t dimension = 0; dimension < input.dim(); ++dimension)
    if (dimension != 1) others.push_back(dimension);
  const auto [variance, mean] = at::var_mean(input.to(computed_in(input.scalar_type())), others, /*unbiased=*/false);
  const auto count = at::full({1}, static_cast<double>(input.numel() / channels), options);
  return at::cat({count, mean.to(at::kDouble), variance.to(at::kDouble)});
}

}  // namespace

at::ScalarType computed_in(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor BatchMoments::unbiased_variance() const { return variance * (count / (count - 1).clamp_min(1)); }

// Chan, Golub and LeVeque's rule for several samples: nothing cancels where means are large.
BatchMoments batch_moments(const at::Tensor& input, ProcessGroup& group) {
  const auto channels = input.size(1);
  const auto all = at::stack(group.all_gather(own_moments(input.detach()), {.label = "batch norm's forward"}));
  const auto counts = all.narrow(1, 0, 1), means = all.narrow(1, 1, channels);
  const auto variances = all.narrow(1, 1 + channels, channels);
  const auto count = counts.sum();
  const auto divisor = count.clamp_min(1);
  const auto mean = (means * counts).sum(0) / divisor;
  const auto variance = ((variances + (means - mean).square()) * counts).sum(0) / divisor;
  return {count, mean, variance};
}

}  // namespace ddp
