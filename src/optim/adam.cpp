#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <tuple>
#include <type_traits>

#include "ddp/optim.hpp"
#include "optim/update_rule.hpp"

namespace ddp::optim {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// Adam (Kingma and Ba 2015, arXiv:1412.6980) or AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), which differ in
// what a decay of the weights acts on; amsgrad is by Reddi et al. 2018, arXiv:1904.09237.
template <class Options, class State>
class AdamRule final : public UpdateRule {
 public:
  const char* name() const override { return kDecouples ? "AdamW" : "Adam"; }

  StateTensors tensors(std::unique_ptr<OptimizerParamState>& state, const OptimizerOptions& options) const override {
    if (!state) state = std::make_unique<State>();
    auto& fields = static_cast<State&>(*state);
    return {&fields.exp_avg(), &fields.exp_avg_sq(), of(options).amsgrad() ? &fields.max_exp_avg_sq() : nullptr};
  }

  std::int64_t advance(OptimizerParamState* state, bool) const override {
    auto& steps = static_cast<State&>(*state).step();
    return ++steps;
  }

  Step step(const OptimizerOptions& options, std::int64_t number) const override {
    const auto& adam = of(options);
    const auto [beta1, beta2] = adam.betas();
    const auto count = static_cast<double>(number);
    return AdamStep{.weight_decay = kDecouples ? 0 : adam.weight_decay(),
                    .shrink = kDecouples ? 1 - adam.lr() * adam.weight_decay() : 1,
                    .beta1 = beta1,
                    .beta2 = beta2,
                    .step_size = adam.lr() / (1 - std::pow(beta1, count)),
                    .root_scale = 1 / std::sqrt(1 - std::pow(beta2, count)),
                    .eps = adam.eps(),
                    .amsgrad = adam.amsgrad()};
  }

  bool same(const OptimizerOptions& a, const OptimizerOptions& b) const override { return of(a) == of(b); }

 private:
  static constexpr bool kDecouples = std::is_same_v<Options, AdamWOptions>;

  static const Options& of(const OptimizerOptions& options) { return static_cast<const Options&>(options); }
};

}  // namespace

template <>
const UpdateRule& rule_of<torch::optim::Adam>() {
  static const AdamRule<AdamOptions, torch::optim::AdamParamState> rule;
  return rule;
}

template <>
const UpdateRule& rule_of<torch::optim::AdamW>() {
  static const AdamRule<AdamWOptions, torch::optim::AdamWParamState> rule;
  return rule;
}

}  // namespace ddp::optim
