#pragma once
/// scale.hpp: what a gradient is multiplied with.

#include <ATen/core/Tensor.h>

namespace ddp {

/// A factor, in the two forms that arithmetic on tensors takes.
struct Scale {
  explicit Scale(double factor);
  double value;
  at::Tensor tensor;  ///< a wrapped number: it does not raise the dtype of what it multiplies
};

}  // namespace ddp
