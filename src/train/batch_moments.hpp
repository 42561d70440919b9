#pragma once
/// batch_moments.hpp: mean and variance of each channel over the batches of all ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ddp/process_group.hpp"

namespace ddp {

/// The dtype in which values of `dtype` are added up: float64 for itself, else float32.
at::ScalarType computed_in(at::ScalarType dtype);

/// Tensors: float64, [channels] but for the count, which has no dimension; the same bits on all ranks.
struct BatchMoments {
  at::Tensor count;     ///< values in a channel
  at::Tensor mean;      ///< 0 where there is none
  at::Tensor variance;  ///< by the count

  /// By one less than the count, as running statistics have it.
  at::Tensor unbiased_variance() const;
};

/// Collective. Of `input` [batch, channels, ...], through which a backward() goes if `requires_gradient`. Errors:
/// std::logic_error, on all ranks, where they have other numbers of channels, or (told on the CPU alone, where nobody
/// waits for it) where the input requires a gradient on some ranks only, whose backward the others would not take part
/// in.
BatchMoments batch_moments(const at::Tensor& input, bool requires_gradient, ProcessGroup& group);

}  // namespace ddp
