#include "ddp/clip_grad.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

#include "reduce/distinct_gradients.hpp"

namespace ddp {
namespace {

void require_limits(double max_norm, double norm_type) {
  std::ostringstream text;
  if (!(max_norm >= 0)) text << "max_norm is " << max_norm;
  if (!(norm_type >= 0)) text << "norm_type is " << norm_type;
  if (!text.str().empty()) throw std::invalid_argument("ddp: clip_grad_norm_: " + text.str() + "; 0 or more is wanted");
}

// Sums over half types are formed in float.
at::ScalarType sum_dtype(const std::vector<at::Tensor>& gradients) {
  const bool has_double = std::any_of(gradients.begin(), gradients.end(), [](const auto& gradient) {
    return c10::toRealValueType(gradient.scalar_type()) == at::kDouble;
  });
  return has_double ? at::kDouble : at::kFloat;
}

at::Tensor norm_of_all(const std::vector<at::Tensor>& gradients, double norm_type) {
  const auto dtype = sum_dtype(gradients);
  std::vector<at::Tensor> norms;
  for (const auto& gradient : gradients) {
    const auto wide = gradient.is_complex() ? c10::toComplexType(dtype) : dtype;
    norms.push_back(at::linalg_vector_norm(gradient, norm_type, {}, false, wide).to(gradients[0].device(), dtype));
  }
  // The norm of order 0 counts the elements that are not zero, and counts add up.
  const auto all = at::stack(norms);
  return norm_type == 0 ? all.sum() : at::linalg_vector_norm(all, norm_type);
}

}  // namespace

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  require_limits(max_norm, norm_type);
  const at::NoGradGuard no_grad;
  const auto gradients = distinct_gradients(parameters);
  if (gradients.empty()) return at::zeros({}, at::kFloat);
  auto norm = norm_of_all(gradients, norm_type);
  if (error_if_nonfinite && !std::isfinite(norm.item<double>())) {
    std::ostringstream text;
    text << "ddp: clip_grad_norm_: the gradients' norm is " << norm.item<double>() << ", nothing was clipped";
    throw std::runtime_error(text.str());
  }
  const auto factor = at::clamp(max_norm / (norm + 1e-6), std::nullopt, 1.0);
  if (norm.is_cpu() && factor.item<double>() == 1) return norm;
  for (const auto& gradient : gradients) gradient.mul_(factor.to(gradient.device()));
  return norm;
}

bool all_finite(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() == 0) return true;
    const auto& values = tensor.layout() == at::kSparse ? tensor._values() : tensor;
    if (!values.is_floating_point() && !values.is_complex()) return true;
    // A sum is finite only if all of it is, and takes one pass and no memory; large elements may overflow it.
    const auto sum = values.sum();
    return at::isfinite(sum).item<bool>() || at::isfinite(values).all().item<bool>();
  });
}

}  // namespace ddp
