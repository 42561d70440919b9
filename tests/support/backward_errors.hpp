#pragma once
/// backward_errors.hpp: backwards that fail, and the text of a GradientError.

#include <torch/torch.h>

#include <stdexcept>
#include <string>

#include "ddp/error.hpp"

namespace ddp::testing {

template <class F>
std::string gradient_error(F&& f) {
  try {
    f();
  } catch (const GradientError& error) {
    return error.what();
  }
  return "no GradientError";
}

/// Throws in backward on the ranks asked for.
struct Fuse : torch::autograd::Function<Fuse> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, bool blows) {
    context->saved_data["blows"] = blows;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["blows"].toBool()) throw std::runtime_error("blown");
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace ddp::testing
