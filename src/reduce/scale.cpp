#include "reduce/scale.hpp"

#include <ATen/ScalarOps.h>

namespace ddp {

Scale::Scale(double factor) : value(factor), tensor(at::native::wrapped_scalar_tensor(factor)) {}

}  // namespace ddp
