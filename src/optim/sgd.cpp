#include <torch/optim/sgd.h>

#include "ddp/optim.hpp"
#include "optim/update_rule.hpp"

namespace ddp::optim {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using torch::optim::SGDParamState;

const SGDOptions& sgd(const OptimizerOptions& options) { return static_cast<const SGDOptions&>(options); }

class SgdRule final : public UpdateRule {
 public:
  const char* name() const override { return "SGD"; }

  StateTensors tensors(std::unique_ptr<OptimizerParamState>& state, const OptimizerOptions& options) const override {
    if (sgd(options).momentum() == 0) return {};
    if (!state) state = std::make_unique<SGDParamState>();
    return {&static_cast<SGDParamState&>(*state).momentum_buffer()};
  }

  std::int64_t advance(OptimizerParamState*, bool is_new) const override { return is_new ? kFirst : kLater; }

  Step step(const OptimizerOptions& options, std::int64_t number) const override {
    return SgdStep{.learning_rate = sgd(options).lr(),
                   .weight_decay = sgd(options).weight_decay(),
                   .momentum = sgd(options).momentum(),
                   .new_weight = 1 - sgd(options).dampening(),
                   .nesterov = sgd(options).nesterov(),
                   .is_first = number == kFirst};
  }

  bool same(const OptimizerOptions& a, const OptimizerOptions& b) const override { return sgd(a) == sgd(b); }

 private:
  static constexpr std::int64_t kFirst = 1, kLater = 2;
};

}  // namespace

template <>
const UpdateRule& rule_of<torch::optim::SGD>() {
  static const SgdRule rule;
  return rule;
}

}  // namespace ddp::optim
