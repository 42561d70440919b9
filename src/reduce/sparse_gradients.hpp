#pragma once
/// sparse_gradients.hpp: gradients that have values in a few rows only, as of Embedding(sparse=true).

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "ddp/process_group.hpp"
#include "reduce/bucket.hpp"
#include "reduce/parameter.hpp"

namespace ddp {

/// They travel as lists of rows, which may differ in length between the ranks, and stay sparse. Ranks add the same
/// lists in the same order, so they hold the same bits.
/// Threads: one at a time; the reducer's lock covers it.
class SparseGradients {
 public:
  explicit SparseGradients(const std::vector<Parameter>& parameters);

  /// True if parameter i's gradient travels here.
  bool has(std::size_t i) const { return position_[i].has_value(); }
  bool is_empty() const { return parameters_.empty(); }

  void clear();
  /// Adds gradient x scale. A dense one, of a weight that is used elsewhere too, is taken by its non-zero rows.
  void add(std::size_t i, const at::Tensor& gradient, const Scale& scale);

  /// Collective, in two halves: starts the exchange; waits for it.
  void launch(ProcessGroup& group);
  void wait();
  /// After wait(): the sum of all ranks' rows x correction, coalesced.
  at::Tensor sum(std::size_t i, double correction) const;

 private:
  struct Rows {
    at::Tensor parameter;
    at::Tensor own;                   // undefined: none
    std::vector<at::Tensor> indices;  // of each rank, [rows, 1]
    std::vector<at::Tensor> values;   // of each rank, [rows, ...]
  };

  std::vector<std::optional<std::size_t>> position_;  // in parameters_, by parameter
  std::vector<Rows> parameters_;
  std::vector<Work> works_;
};

}  // namespace ddp
