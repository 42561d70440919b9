#include "train/batch_moments.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace ddp {
namespace {

/// Numbers before those of the channels: how many values each has, and whether the input requires a gradient.
constexpr std::int64_t kHead = 2;

/// float64 [kHead + 2 channels]: then mean and variance of each channel.
at::Tensor own_moments(const at::Tensor& input, bool requires_gradient) {
  const auto channels = input.size(1);
  const auto options = input.options().dtype(at::kDouble);
  const auto gradient = at::full({1}, requires_gradient ? 1.0 : 0.0, options);
  if (input.numel() == 0) return at::cat({at::zeros({1}, options), gradient, at::zeros({2 * channels}, options)});
  std::vector<std::int64_t> others;
  for (std::int64_t dimension = 0; dimension < input.dim(); ++dimension)
    if (dimension != 1) others.push_back(dimension);
  const auto [variance, mean] = at::var_mean(input.to(computed_in(input.scalar_type())), others, /*unbiased=*/false);
  const auto count = at::full({1}, static_cast<double>(input.numel() / channels), options);
  return at::cat({count, gradient, mean.to(at::kDouble), variance.to(at::kDouble)});
}

void require_same_norm(const std::vector<at::Tensor>& of_ranks) {
  const auto channels = [](const at::Tensor& moments) { return (moments.size(0) - kHead) / 2; };
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const auto &first = of_ranks[0], &other = of_ranks[rank];
    const auto ranks = " on rank 0 and on rank " + std::to_string(rank);
    if (channels(other) != channels(first))
      throw std::logic_error("ddp: a synchronised batch norm has " + std::to_string(channels(first)) + " and " +
                             std::to_string(channels(other)) + " channels" + ranks);
    if (first.is_cpu() && other[1].item<double>() != first[1].item<double>())
      throw std::logic_error(
          "ddp: the input of a synchronised batch norm requires a gradient on some ranks only, which differ" + ranks +
          "; freeze what comes before it on all ranks or on none");
  }
}

}  // namespace

at::ScalarType computed_in(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor BatchMoments::unbiased_variance() const { return variance * (count / (count - 1).clamp_min(1)); }

// Chan, Golub and LeVeque's rule for several samples: nothing cancels where means are large.
BatchMoments batch_moments(const at::Tensor& input, bool requires_gradient, ProcessGroup& group) {
  const auto channels = input.size(1);
  const auto of_ranks =
      group.all_gather(own_moments(input.detach(), requires_gradient), {.label = "batch norm's forward"});
  require_same_norm(of_ranks);
  const auto all = at::stack(of_ranks);
  const auto counts = all.narrow(1, 0, 1), means = all.narrow(1, kHead, channels);
  const auto variances = all.narrow(1, kHead + channels, channels);
  const auto count = counts.sum();
  const auto divisor = count.clamp_min(1);
  const auto mean = (means * counts).sum(0) / divisor;
  const auto variance = ((variances + (means - mean).square()) * counts).sum(0) / divisor;
  return {count, mean, variance};
}

}  // namespace ddp
