#pragma once
/// parameter.hpp: a trainable tensor and the names under which the module lists it.

#include <ATen/core/Tensor.h>

#include <string>

namespace ddp {

struct Parameter {
  std::string name;  ///< tied weights carry all their names: "encoder.weight = decoder.weight"
  at::Tensor tensor;
  bool is_sparse = false;  ///< its gradient is expected with values in a few rows only
};

}  // namespace ddp
