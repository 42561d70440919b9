#pragma once
/// clip_grad.hpp: a limit for the gradients' norm, and whether they are finite.

#include <ATen/core/Tensor.h>

#include <vector>

namespace ddp {

/// Scales the parameters' gradients, in place, so that their norm, taken over all of them as one vector, is at most
/// `max_norm`, as Python's torch.nn.utils.clip_grad_norm_(): by max_norm / (norm + 1e-6) where that is less than one.
/// Returns the norm before: [], on the gradients' device, float32, or float64 where one of them is; 0 without any.
///
/// Averaged gradients are the same on all ranks, and so is what becomes of them: no call is needed. Gradients that each
/// rank keeps to itself are to be clipped apart, for with them the norm differs between the ranks. With a GradScaler:
/// after unscale_().
/// Memory is read once, and written only where something is to be scaled (on a device, where asking would mean to wait
/// for it, always). A parameter that is named twice, or a gradient that two parameters share in one shape, counts once
/// and is scaled once. Tensors: any floating-point or complex dtypes, sparse ones too. `norm_type` 0 or more, or
/// infinity for the largest absolute value. Errors: std::invalid_argument for a negative or undefined max_norm or
/// norm_type; with `error_if_nonfinite` std::runtime_error for a norm that is not finite, and nothing is changed then.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2,
                           bool error_if_nonfinite = false);

/// True if no element is infinite or NaN; undefined tensors count as finite. On a device this waits for it.
bool all_finite(const std::vector<at::Tensor>& tensors);

}  // namespace ddp
