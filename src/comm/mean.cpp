#include "ddp/mean.hpp"

#include <ATen/Functions.h>

#include <stdexcept>

#include "ddp/process_group.hpp"

namespace ddp {

double mean(double value, ProcessGroup& group) {
  auto sum = at::full({1}, value, at::TensorOptions().dtype(at::kDouble).device(group.device()));
  group.all_reduce(sum, ReduceOp::sum, {.label = "mean"});
  return sum.item<double>() / group.size();
}

double mean(const at::Tensor& values, ProcessGroup& group) {
  if (!values.defined() || values.numel() == 0 || values.is_complex()) {
    throw std::invalid_argument("mean: needs a tensor of real numbers with at least one element");
  }
  return mean(values.detach().to(at::kDouble).mean().item<double>(), group);
}

}  // namespace ddp
