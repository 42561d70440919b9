#include "train/synced_norm.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/autograd.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "train/batch_moments.hpp"

namespace ddp {
namespace {

namespace autograd = torch::autograd;

/// Nobody casts for us: dtypes are chosen here.
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

/// [channels] as [1, channels, 1, ...], to go with `like`.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(like.dim()), 1);
  sizes[1] = -1;
  return values.view(sizes);
}

using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor if_defined(const at::Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

OptionalTensor cast(const OptionalTensor& tensor, at::ScalarType dtype) {
  return tensor ? OptionalTensor(tensor->to(dtype)) : std::nullopt;
}

/// What backward needs beside input and weight. The tensors have the dtype that is computed in.
struct Normalisation : torch::CustomClassHolder {
  at::Tensor mean, variance;  // [channels]
  at::Tensor count;           // float64, of all ranks
  double eps = 0;
  std::shared_ptr<ProcessGroup> group;
};
using SharedNormalisation = c10::intrusive_ptr<Normalisation>;

struct Gradients {
  at::Tensor input, weight, bias;
};

/// Of this rank alone: for weight and bias its part of the sum, for the input as though mean and variance were given.
Gradients own_gradients(const at::Tensor& grad, const at::Tensor& input, const OptionalTensor& weight,
                        const Normalisation& by) {
  if (input.numel() == 0) return {at::zeros_like(input), at::zeros_like(by.mean), at::zeros_like(by.mean)};
  auto [of_input, of_weight, of_bias] =
      at::native_batch_norm_backward(grad, input, weight, by.mean, by.variance, std::nullopt, std::nullopt,
                                     /*train=*/false, by.eps, {true, true, true});
  return {of_input, of_weight, of_bias};
}

/// Collective. Adds what flows through mean and variance, which all values of the channel have a part in:
/// weight / deviation * (grad - mean(grad) - normalised input * mean(grad * normalised input)).
void add_flow_through_moments(Gradients& own, const at::Tensor& input, const OptionalTensor& weight,
                              const Normalisation& by) {
  auto sums = at::stack({own.bias, own.weight}).to(at::kDouble);
  by.group->all_reduce(sums, ReduceOp::sum, {.label = "batch norm's backward"});
  const auto means = (sums / by.count).to(input.scalar_type());
  const auto inverse = (by.variance + by.eps).rsqrt();
  const auto scale = weight ? inverse * *weight : inverse;
  own.input.addcmul_(input - per_channel(by.mean, input), per_channel(scale * inverse * means[1], input), -1)
      .sub_(per_channel(scale * means[0], input));
}

/// The identity, whose backward refuses.
struct Once : autograd::Function<Once> {
  static at::Tensor forward(autograd::AutogradContext*, const at::Tensor& gradient) {
    return gradient.view_as(gradient);
  }
  static autograd::variable_list backward(autograd::AutogradContext*, const autograd::variable_list&) {
    throw std::logic_error("ddp: a synchronised batch norm has no second derivative: its backward() went through " +
                           std::string("create_graph and was to be gone back through; use BatchNorm there"));
  }
};

at::Tensor returned(const at::Tensor& gradient, at::ScalarType dtype) {
  const auto cast = gradient.to(dtype);
  return at::GradMode::is_enabled() ? Once::apply(cast.detach().requires_grad_()) : cast;
}

struct Normalise : autograd::Function<Normalise> {
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& input, const OptionalTensor& weight,
                            const OptionalTensor& bias, const SharedNormalisation& by) {
    context->save_for_backward({input, weight.value_or(at::Tensor())});
    context->saved_data["by"] = c10::IValue::make_capsule(by);
    if (bias) context->saved_data["bias dtype"] = static_cast<std::int64_t>(bias->scalar_type());
    if (input.numel() == 0) return at::empty_like(input);
    const auto dtype = by->mean.scalar_type();
    return std::get<0>(at::native_batch_norm(input.to(dtype), cast(weight, dtype), cast(bias, dtype), by->mean,
                                             by->variance, /*training=*/false, 0, by->eps))
        .to(input.scalar_type());
  }

  static autograd::variable_list backward(autograd::AutogradContext* context, const autograd::variable_list& grads) {
    const WithoutAutocast no_autocast;
    const auto saved = context->get_saved_variables();
    const auto by = c10::static_intrusive_pointer_cast<Normalisation>(context->saved_data["by"].toCapsule());
    Gradients gradients;
    {
      const at::NoGradGuard no_grad;
      const auto dtype = by->mean.scalar_type();
      const auto input = saved[0].to(dtype);
      const auto weight = cast(if_defined(saved[1]), dtype);
      gradients = own_gradients(grads[0].to(dtype), input, weight, *by);
      if (context->needs_input_grad(0)) add_flow_through_moments(gradients, input, weight, *by);
    }
    autograd::variable_list results(4);
    if (context->needs_input_grad(0)) results[0] = returned(gradients.input, saved[0].scalar_type());
    if (saved[1].defined()) results[1] = returned(gradients.weight, saved[1].scalar_type());
    if (const auto dtype = context->saved_data.find("bias dtype"); dtype != context->saved_data.end())
      results[2] = returned(gradients.bias, static_cast<at::ScalarType>(dtype->second.toInt()));
    return results;
  }
};

void move_towards(const at::Tensor& running, const at::Tensor& value, double share) {
  running.copy_(running.to(at::kDouble) * (1 - share) + value * share);
}

/// A rank that has two values itself need not wait for the device to know of others.
std::int64_t values_at_least(const at::Tensor& input, const BatchMoments& moments) {
  const auto own = input.size(1) == 0 ? 0 : input.numel() / input.size(1);
  return own > 1 ? own : static_cast<std::int64_t>(moments.count.item<double>());
}

}  // namespace

at::Tensor synced_batch_norm(const at::Tensor& input, const NormTensors& tensors, const NormNumbers& numbers,
                             const std::shared_ptr<ProcessGroup>& group) {
  if (!input.is_floating_point())
    throw std::logic_error(std::string("ddp: a synchronised batch norm takes real floating-point numbers, not ") +
                           c10::toString(input.scalar_type()));
  const WithoutAutocast no_autocast;
  const bool requires_gradient = at::GradMode::is_enabled() && input.requires_grad();
  auto by = c10::make_intrusive<Normalisation>();
  {
    const at::NoGradGuard no_grad;
    const auto moments = batch_moments(input, requires_gradient, *group);
    const auto values = values_at_least(input, moments);
    if (values == 1)
      throw std::logic_error(
          "ddp: a synchronised batch norm in training needs more than one value a channel, and all " +
          std::string("ranks together have one; give it a larger batch"));
    if (values > 0 && tensors.running_mean.defined()) {
      move_towards(tensors.running_mean, moments.mean, numbers.momentum);
      move_towards(tensors.running_var, moments.unbiased_variance(), numbers.momentum);
    }
    const auto dtype = computed_in(input.scalar_type());
    by->mean = moments.mean.to(dtype);
    by->variance = moments.variance.to(dtype);
    by->count = moments.count;
    by->eps = numbers.eps;
    by->group = group;
  }
  return Normalise::apply(input, if_defined(tensors.weight), if_defined(tensors.bias), by);
}

}  // namespace ddp
