#pragma once
/// update.hpp: the arithmetic of an optimizer's step, over plain memory.
///
/// The bits of a result depend neither on the processor's instruction set nor on how a range is cut: ranks on different
/// processors have the same weights.
/// Threads: any number at a time, on ranges that do not overlap.

#include <cstddef>

namespace ddp::optim {

/// Tensors that an optimizer keeps beside a parameter, at most.
inline constexpr std::size_t kMaxStates = 3;

/// Elements of one range, in float or double. What is not needed is null.
template <class T>
struct Range {
  T* parameter;
  const T* gradient;
  T* state[kMaxStates];  ///< sgd: momentum; adam: mean, mean of squares, largest mean of squares
  std::size_t count;
};

/// What one step of torch::optim::SGD does to each element. State: with momentum its buffer.
struct SgdStep {
  double gradient_scale = 1;  ///< gradients count times this
  double learning_rate = 0;
  double weight_decay = 0;
  double momentum = 0;    ///< 0: no state
  double new_weight = 1;  ///< of the gradient in the buffer: 1 - dampening
  bool nesterov = false;
  bool is_first = false;  ///< the buffer becomes the gradient, whatever it holds

  bool operator==(const SgdStep&) const = default;
};

/// What one step of torch::optim::Adam or AdamW does to each element. State: the means of the gradients and of their
/// squares; with amsgrad the largest of the latter so far.
struct AdamStep {
  double gradient_scale = 1;
  double weight_decay = 0;  ///< added to the gradient, times the parameter: Adam's
  double shrink = 1;        ///< of the parameter before the step: AdamW's weight decay
  double beta1 = 0;
  double beta2 = 0;
  double step_size = 0;   ///< the learning rate by the first bias correction
  double root_scale = 1;  ///< of the mean square's root: 1 by the root of the second bias correction
  double eps = 0;
  bool amsgrad = false;

  bool operator==(const AdamStep&) const = default;
};

void update(const SgdStep& step, const Range<float>& range);
void update(const SgdStep& step, const Range<double>& range);
void update(const AdamStep& step, const Range<float>& range);
void update(const AdamStep& step, const Range<double>& range);

/// The sum of squares, formed in double. Of floats it is finite exactly if all of them are; of doubles it may overflow.
double sum_of_squares(const float* values, std::size_t count);
double sum_of_squares(const double* values, std::size_t count);

}  // namespace ddp::optim
