#pragma once
/// update_rule.hpp: what tells one kind of optimizer from another: its options, its state, its arithmetic.

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>

#include "optim/update.hpp"

namespace ddp::optim {

using Step = std::variant<SgdStep, AdamStep>;
/// Fields of a parameter's state, in the order of Range::state; null: not needed.
using StateTensors = std::array<at::Tensor*, kMaxStates>;

/// Stateless; one object serves all optimizers of its kind. Options and states are those of torch::optim's.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual const char* name() const = 0;
  /// What a parameter's step needs with these options; makes the state itself where there is none. Tensors may be
  /// undefined.
  virtual StateTensors tensors(std::unique_ptr<torch::optim::OptimizerParamState>& state,
                               const torch::optim::OptimizerOptions& options) const = 0;
  /// Counts a step of a parameter. `is_new`: its tensors were undefined. Returns the number by which step() knows it.
  virtual std::int64_t advance(torch::optim::OptimizerParamState* state, bool is_new) const = 0;
  virtual Step step(const torch::optim::OptimizerOptions& options, std::int64_t number) const = 0;
  virtual bool same(const torch::optim::OptimizerOptions& a, const torch::optim::OptimizerOptions& b) const = 0;
};

}  // namespace ddp::optim
