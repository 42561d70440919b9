#pragma once
/// optimizer_layout.hpp: how the options and the state of an optimizer of torch::optim, or of the one in optim.hpp that
/// takes its place, stand in a file: as in Python's.

#include <torch/optim/optimizer.h>

#include <memory>
#include <typeinfo>

#include "train/checkpoint/parts.hpp"

namespace ddp::checkpoint {

struct OptimizerLayout {
  /// LibTorch's optimizer of this kind, by whose name a file tells it from others.
  const std::type_info* libtorchs;
  Dict (*write_options)(torch::optim::OptimizerOptions& options);
  /// Errors: std::runtime_error for options that are not there or that C++ does not know.
  void (*read_options)(const Place& place, torch::optim::OptimizerOptions& options);
  void (*assign_options)(torch::optim::OptimizerOptions& to, const torch::optim::OptimizerOptions& from);
  Dict (*write_state)(torch::optim::OptimizerParamState& state, torch::optim::OptimizerOptions& options,
                      Tensors tensors);
  /// nullptr where nothing is known yet. Tensors: laid out, and on the device and of the dtype, of `parameter`. Errors:
  /// std::runtime_error, also for other shapes than its and for what is not there but needed.
  std::unique_ptr<torch::optim::OptimizerParamState> (*read_state)(const Place& place,
                                                                   torch::optim::OptimizerOptions& options,
                                                                   const at::Tensor& parameter);
};

/// nullptr for other optimizers than these.
const OptimizerLayout* find_layout(const std::type_info& type);

}  // namespace ddp::checkpoint
