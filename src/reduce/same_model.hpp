#pragma once
/// same_model.hpp: all ranks hold the same tensors, or all ranks say where they differ.

#include <string>
#include <vector>

#include "ddp/process_group.hpp"

namespace ddp {

/// A tensor of the module as the other ranks must have it.
struct ModelTensor {
  std::string role;  ///< "parameter" or "buffer"
  std::string name;
  at::Tensor tensor;
};

/// Collective. Compares `options`, and roles, names, dtypes, shapes, strides, requires_grad, ties and order of the
/// tensors: first 16 bytes a rank, the whole lists only where those differ.
/// Errors: ModelMismatchError on every rank, with the first difference and both ranks.
void verify_same_model(const std::string& options, const std::vector<ModelTensor>& tensors, ProcessGroup& group);

}  // namespace ddp
