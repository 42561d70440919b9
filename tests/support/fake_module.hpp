#pragma once
/// fake_module.hpp: modules on the fake accelerator, to which Module::to() cannot move them.

#include <torch/nn/module.h>
#include <torch/utils.h>

namespace ddp::testing {

/// Before the module's first backward, and before an optimizer or a wrapper has its parameters. They stay the same
/// tensors.
inline void move_to(torch::nn::Module& module, c10::Device device) {
  const torch::NoGradGuard no_grad;
  const auto move = [&](torch::Tensor& tensor) {
    const auto moved = tensor.detach().to(device);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  };
  for (auto& parameter : module.parameters()) move(parameter);
  for (auto& buffer : module.buffers()) move(buffer);
}

}  // namespace ddp::testing
