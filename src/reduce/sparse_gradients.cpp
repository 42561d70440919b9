#include "reduce/sparse_gradients.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

namespace ddp {
namespace {

// Sparse in the first dimension, dense in the others.
at::Tensor by_rows(const at::Tensor& gradient) {
  if (gradient.layout() == at::kStrided) return gradient.to_sparse(1);
  return gradient.sparse_dim() == 1 ? gradient : gradient.to_dense().to_sparse(1);
}

}  // namespace

SparseGradients::SparseGradients(const std::vector<Parameter>& parameters) : position_(parameters.size()) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].is_sparse) continue;
    position_[i] = parameters_.size();
    parameters_.push_back({parameters[i].tensor, {}, {}, {}});
  }
}

void SparseGradients::clear() {
  works_.clear();
  for (auto& rows : parameters_) rows = {rows.parameter, {}, {}, {}};
}

void SparseGradients::add(std::size_t i, const at::Tensor& gradient, const Scale& scale) {
  auto& own = parameters_[*position_[i]].own;
  const auto scaled = by_rows(gradient.detach()).mul(scale.tensor);
  own = own.defined() ? own.add(scaled) : scaled;
}

void SparseGradients::launch(ProcessGroup& group) {
  for (auto& rows : parameters_) {
    const auto& options = rows.parameter.options().requires_grad(false);
    auto indices = at::empty({0, 1}, options.dtype(at::kLong));
    auto shape = rows.parameter.sizes().vec();
    shape[0] = 0;
    auto values = at::empty(shape, options);
    if (rows.own.defined()) {
      rows.own = rows.own.coalesce();
      indices = rows.own.indices().t().contiguous();
      values = rows.own.values().contiguous();
    }
    works_.push_back(group.all_gather_async(rows.indices, indices, {.label = "rows of a sparse gradient"}));
    works_.push_back(group.all_gather_async(rows.values, values, {.label = "values of a sparse gradient"}));
  }
}

void SparseGradients::wait() {
  for (const auto& work : works_) work.wait();
  works_.clear();
}

at::Tensor SparseGradients::sum(std::size_t i, double correction) const {
  const auto& rows = parameters_[*position_[i]];
  auto values = at::cat(rows.values);
  if (correction != 1) values.mul_(correction);
  return at::sparse_coo_tensor(at::cat(rows.indices).t(), values, rows.parameter.sizes()).coalesce();
}

}  // namespace ddp
