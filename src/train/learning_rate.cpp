#include "ddp/learning_rate.hpp"

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <stdexcept>
#include <string>

namespace ddp {
namespace {

template <class... Known>
bool is_one_of(const torch::optim::Optimizer& optimizer) {
  return ((dynamic_cast<const Known*>(&optimizer) != nullptr) || ...);
}

void require_positive(const char* name, std::int64_t samples) {
  if (samples <= 0)
    throw std::invalid_argument(std::string("scaled_learning_rate: ") + name + " is " + std::to_string(samples) +
                                ", but a batch has one sample at least");
}

}  // namespace

ScalingRule scaling_rule(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (is_one_of<SGD>(optimizer)) return ScalingRule::linear;
  if (is_one_of<Adam, AdamW, RMSprop, Adagrad>(optimizer)) return ScalingRule::square_root;
  throw std::invalid_argument("scaling_rule: none is known for " + c10::demangle(typeid(optimizer).name()) +
                              "; choose ScalingRule::linear or the more careful square_root");
}

double scaled_learning_rate(double base_rate, std::int64_t base_batch, std::int64_t global_batch, ScalingRule rule) {
  if (!std::isfinite(base_rate) || base_rate <= 0)
    throw std::invalid_argument("scaled_learning_rate: base_rate is " + std::to_string(base_rate) +
                                ", but a rate is positive and finite");
  require_positive("base_batch", base_batch);
  require_positive("global_batch", global_batch);
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(base_batch);
  return base_rate * (rule == ScalingRule::linear ? ratio : std::sqrt(ratio));
}

}  // namespace ddp
