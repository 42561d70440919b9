#pragma once
/// update_loops.hpp: the loops of update.hpp, written for the compiler to vectorise.
///
/// Included by one source file per instruction set, which is compiled with that set's flags: everything is in an
/// unnamed namespace and nothing calls an inline function of the standard library, for the linker keeps one copy of
/// such a function, maybe one that the processor cannot run. Each pass is bound by memory, so what a step does not need
/// is chosen outside the loop only where it would change the result, as a decay of 0 does for an infinite parameter.

#include "optim/update_table.hpp"

namespace ddp::optim {
namespace {

inline float square_root(float value) { return __builtin_sqrtf(value); }
inline double square_root(double value) { return __builtin_sqrt(value); }

enum class Buffer { none, first, later };

// ivdep, here and below: an element is written where it has just been read, and ranges do not overlap.
template <class T, Buffer buffer, bool nesterov, bool decays>
void sgd_loop(const SgdStep& step, const Range<T>& range) {
  T* parameter = range.parameter;
  const T* gradients = range.gradient;
  T* momenta = range.state[0];
  const T scale = static_cast<T>(step.gradient_scale), rate = static_cast<T>(-step.learning_rate);
  const T decay = static_cast<T>(step.weight_decay);
  const T momentum = static_cast<T>(step.momentum), weight = static_cast<T>(step.new_weight);
  const std::size_t count = range.count;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    T change = gradients[i] * scale;
    if constexpr (decays) change = change + parameter[i] * decay;
    if constexpr (buffer != Buffer::none) {
      T average = change;
      if constexpr (buffer == Buffer::later) average = momenta[i] * momentum + change * weight;
      momenta[i] = average;
      change = nesterov ? change + average * momentum : average;
    }
    parameter[i] = parameter[i] + change * rate;
  }
}

template <class T, Buffer buffer>
void sgd_with(const SgdStep& step, const Range<T>& range) {
  const bool decays = step.weight_decay != 0;
  if (step.nesterov)
    return decays ? sgd_loop<T, buffer, true, true>(step, range) : sgd_loop<T, buffer, true, false>(step, range);
  return decays ? sgd_loop<T, buffer, false, true>(step, range) : sgd_loop<T, buffer, false, false>(step, range);
}

template <class T>
void sgd(const SgdStep& step, const Range<T>& range) {
  if (step.momentum == 0) return sgd_with<T, Buffer::none>(step, range);
  return step.is_first ? sgd_with<T, Buffer::first>(step, range) : sgd_with<T, Buffer::later>(step, range);
}

template <class T, bool amsgrad, bool decays>
void adam_loop(const AdamStep& step, const Range<T>& range) {
  T* parameter = range.parameter;
  const T* gradients = range.gradient;
  T *means = range.state[0], *squares = range.state[1], *largest = range.state[2];
  const T scale = static_cast<T>(step.gradient_scale), decay = static_cast<T>(step.weight_decay);
  const T shrink = static_cast<T>(step.shrink), size = static_cast<T>(-step.step_size);
  const T beta1 = static_cast<T>(step.beta1), new1 = static_cast<T>(1 - step.beta1);
  const T beta2 = static_cast<T>(step.beta2), new2 = static_cast<T>(1 - step.beta2);
  const T root_scale = static_cast<T>(step.root_scale), eps = static_cast<T>(step.eps);
  const bool keeps_most = step.beta1 > 0.5;
  const std::size_t count = range.count;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    T gradient = gradients[i] * scale;
    if constexpr (decays) gradient = gradient + parameter[i] * decay;
    // Python's lerp_(), which rounds the mean once, where a sum of two products rounds each of them, too.
    const T apart = gradient - means[i];
    const T mean = keeps_most ? means[i] + apart * new1 : gradient - apart * beta1;
    T square = squares[i] * beta2 + gradient * gradient * new2;
    means[i] = mean;
    squares[i] = square;
    if constexpr (amsgrad) {
      square = largest[i] >= square ? largest[i] : square;  // a NaN wins, as in torch::max
      largest[i] = square;
    }
    parameter[i] = parameter[i] * shrink + mean / (square_root(square) * root_scale + eps) * size;
  }
}

template <class T>
void adam(const AdamStep& step, const Range<T>& range) {
  const bool decays = step.weight_decay != 0;
  if (step.amsgrad) return decays ? adam_loop<T, true, true>(step, range) : adam_loop<T, true, false>(step, range);
  return decays ? adam_loop<T, false, true>(step, range) : adam_loop<T, false, false>(step, range);
}

// The compiler maps these to whatever registers there are; the order of the additions is theirs.
typedef double Lanes __attribute__((vector_size(64)));
constexpr std::size_t kLanes = 8;
constexpr std::size_t kSums = 4;  // enough to hide an addition's latency behind the next ones

template <class T>
double sum_of_squares(const T* values, std::size_t count) {
  Lanes sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums * kLanes <= count; i += kSums * kLanes)
    for (std::size_t s = 0; s < kSums; ++s) {
      Lanes lanes;
      for (std::size_t l = 0; l < kLanes; ++l) lanes[l] = static_cast<double>(values[i + s * kLanes + l]);
      sums[s] += lanes * lanes;
    }
  double total = 0;
  for (const auto& lanes : sums)
    for (std::size_t l = 0; l < kLanes; ++l) total += lanes[l];
  for (; i < count; ++i) total += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return total;
}

constexpr LoopTable kLoops = {.of_float = {sgd<float>, adam<float>, sum_of_squares<float>},
                              .of_double = {sgd<double>, adam<double>, sum_of_squares<double>}};

}  // namespace
}  // namespace ddp::optim
