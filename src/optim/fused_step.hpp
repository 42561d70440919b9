#pragma once
/// fused_step.hpp: one step of an optimizer over some of its parameters.

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "optim/pass.hpp"
#include "optim/update_rule.hpp"

namespace ddp::optim {

/// Parameters are added, then run() updates them. Until then nothing has changed.
/// Lifetime: of one step; the optimizer must not change meanwhile.
class FusedStep {
 public:
  FusedStep(torch::optim::Optimizer& optimizer, const UpdateRule& rule) : optimizer_(optimizer), rule_(rule) {}

  /// Adds a parameter of that group; nothing if it has no gradient. Errors: std::runtime_error for a sparse gradient.
  void add(std::size_t group, const at::Tensor& parameter);
  /// Their gradients, each memory once, in the order in which they were added.
  std::vector<at::Tensor> gradients() const;
  /// Updates all, by their gradients times `scale`. Those that a pass cannot take have their gradients scaled in place,
  /// and are stepped by `step_as_libtorch`, which goes through the groups as they are meanwhile.
  void run(double scale, const std::function<void()>& step_as_libtorch);

 private:
  struct Entry {
    std::size_t group;
    at::Tensor parameter;
    at::Tensor gradient;  // in the parameter's layout, where it takes part in the pass
    bool is_plain;        // the pass can take it
    StateTensors tensors = {};
    torch::optim::OptimizerParamState* state = nullptr;
    bool is_new = false;   // its tensors were undefined
    std::size_t step = 0;  // which of steps_
  };

  const torch::optim::OptimizerOptions& options(const Entry& entry) const;
  std::vector<Entry*> plain_by_address();
  void find_state(Entry& entry);
  static void lay_states(const std::vector<Entry*>& entries, bool only_missing);
  void count_steps(const std::vector<Entry*>& entries);
  static std::vector<Piece> pieces(const std::vector<Entry*>& entries);
  void run_others(double scale, const std::function<void()>& step_as_libtorch);

  torch::optim::Optimizer& optimizer_;
  const UpdateRule& rule_;
  std::vector<Entry> entries_;
  std::vector<Step> steps_;
};

}  // namespace ddp::optim
