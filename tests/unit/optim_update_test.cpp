// An optimizer's arithmetic over plain memory: the same bits by every instruction set and however a range is cut.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "optim/update_table.hpp"

namespace ddp::optim {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 7, 15, 16, 17, 31, 33, 64, 1000};

template <class T>
const Loops<T>& loops(InstructionSet set) {
  if constexpr (std::is_same_v<T, float>)
    return loops_of(set).of_float;
  else
    return loops_of(set).of_double;
}

// Ordinary numbers with some extreme ones between them. States are squares, so none is below zero.
template <class T>
std::vector<T> numbers(std::size_t count, unsigned seed, bool positive = false) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (auto& value : values) value = static_cast<T>(positive ? std::abs(normal(random)) : normal(random));
  const T extremes[] = {0,
                        -T{0},
                        std::numeric_limits<T>::denorm_min(),
                        std::numeric_limits<T>::max() / 4,
                        std::numeric_limits<T>::infinity(),
                        std::numeric_limits<T>::quiet_NaN()};
  for (std::size_t i = 3; i < count; i += 11) values[i] = extremes[i / 11 % std::size(extremes)];
  return values;
}

template <class T>
struct Memory {
  explicit Memory(std::size_t count)
      : parameter(numbers<T>(count, 1)),
        gradient(numbers<T>(count, 2)),
        state{numbers<T>(count, 3), numbers<T>(count, 4, true), numbers<T>(count, 5, true)} {}

  Range<T> range(std::size_t begin, std::size_t end) {
    return {parameter.data() + begin,
            gradient.data() + begin,
            {state[0].data() + begin, state[1].data() + begin, state[2].data() + begin},
            end - begin};
  }

  std::vector<T> parameter, gradient, state[kMaxStates];
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  using Bits = std::conditional_t<sizeof(T) == sizeof(std::uint32_t), std::uint32_t, std::uint64_t>;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::isnan(a[i]) && std::isnan(b[i])) && std::bit_cast<Bits>(a[i]) != std::bit_cast<Bits>(b[i])) return false;
  return a.size() == b.size();
}

template <class T>
void expect_same(const Memory<T>& a, const Memory<T>& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.parameter, b.parameter)) << what;
  EXPECT_TRUE(same_bits(a.gradient, b.gradient)) << what << ": gradients are not to be written";
  for (std::size_t i = 0; i < kMaxStates; ++i)
    EXPECT_TRUE(same_bits(a.state[i], b.state[i])) << what << ", state " << i;
}

std::vector<SgdStep> sgd_steps() {
  std::vector<SgdStep> steps;
  for (const double decay : {0.0, 0.1})
    for (const double momentum : {0.0, 0.9})
      for (const bool nesterov : {false, true})
        for (const bool is_first : {false, true})
          steps.push_back({.gradient_scale = 0.3,
                           .learning_rate = 0.01,
                           .weight_decay = decay,
                           .momentum = momentum,
                           .new_weight = 0.7,
                           .nesterov = nesterov,
                           .is_first = is_first});
  return steps;
}

std::vector<AdamStep> adam_steps() {
  std::vector<AdamStep> steps;
  for (const double decay : {0.0, 0.1})
    for (const double beta1 : {0.9, 0.3})
      for (const bool amsgrad : {false, true})
        steps.push_back({.gradient_scale = 0.3,
                         .weight_decay = decay,
                         .shrink = decay > 0 ? 0.99 : 1,
                         .beta1 = beta1,
                         .beta2 = 0.999,
                         .step_size = 0.01,
                         .root_scale = 1.5,
                         .eps = 1e-8,
                         .amsgrad = amsgrad});
  return steps;
}

template <class T>
void run(InstructionSet set, const SgdStep& step, const Range<T>& range) {
  loops<T>(set).sgd(step, range);
}
template <class T>
void run(InstructionSet set, const AdamStep& step, const Range<T>& range) {
  loops<T>(set).adam(step, range);
}

template <class T, class Steps>
void expect_same_bits_everywhere(const Steps& steps) {
  for (std::size_t s = 0; s < steps.size(); ++s)
    for (const auto count : kCounts) {
      Memory<T> expected(count);
      run(InstructionSet::baseline, steps[s], expected.range(0, count));
      for (const auto set : kInstructionSets) {
        if (!has(set)) continue;
        const auto what = std::string(name_of(set)) + ", step " + std::to_string(s) + ", " + std::to_string(count);
        Memory<T> whole(count), cut(count);
        run(set, steps[s], whole.range(0, count));
        expect_same(whole, expected, what);
        const auto middle = count / 3;
        run(set, steps[s], cut.range(middle, count));
        run(set, steps[s], cut.range(0, middle));
        expect_same(cut, expected, what + ", cut");
      }
    }
}

TEST(OptimUpdate, HasTheSameBitsByEveryInstructionSetAndCut) {
  expect_same_bits_everywhere<float>(sgd_steps());
  expect_same_bits_everywhere<double>(sgd_steps());
  expect_same_bits_everywhere<float>(adam_steps());
  expect_same_bits_everywhere<double>(adam_steps());
}

TEST(OptimUpdate, SgdIsMomentumOverScaledGradientsThatDecayPulls) {
  double parameter = 2, gradient = 10, momentum = 5;
  const SgdStep step{.gradient_scale = 0.1,
                     .learning_rate = 0.5,
                     .weight_decay = 0.25,
                     .momentum = 0.5,
                     .new_weight = 0.5,
                     .nesterov = true};
  update(step, Range<double>{&parameter, &gradient, {&momentum}, 1});
  // 10 x 0.1 + 2 x 0.25 = 1.5; 5 x 0.5 + 1.5 x 0.5 = 3.25; 1.5 + 3.25 x 0.5 = 3.125; 2 - 3.125 x 0.5
  EXPECT_EQ(momentum, 3.25);
  EXPECT_EQ(parameter, 0.4375);
}

TEST(OptimUpdate, AdamDividesTheMeanByTheRootOfTheMeanSquare) {
  double parameter = 8, gradient = 40, mean = 3, square = 3, largest = 16;
  const AdamStep step{.gradient_scale = 0.1,
                      .shrink = 0.5,
                      .beta1 = 0.5,
                      .beta2 = 0.5,
                      .step_size = 2,
                      .root_scale = 0.5,
                      .eps = 1.5,
                      .amsgrad = true};
  update(step, Range<double>{&parameter, &gradient, {&mean, &square, &largest}, 1});
  // gradient 4; mean 3.5; square 9.5; largest stays 16, its root by 0.5 is 2; 8 x 0.5 - 2 x 3.5 / (2 + 1.5)
  EXPECT_EQ(mean, 3.5);
  EXPECT_EQ(square, 9.5);
  EXPECT_EQ(largest, 16);
  EXPECT_EQ(parameter, 2);
}

// The part that weighs more is not multiplied; with beta1 0 the mean is the gradient.
TEST(OptimUpdate, AdamRoundsAMeanOnceAndLittleOfTheOtherPart) {
  constexpr double kRounding = std::numeric_limits<float>::epsilon() / 2;
  for (const double beta1 : {0.0, 0.3, 0.5, 0.9, 0.99})
    for (int i = 0; i < 200; ++i) {
      const auto gradient = static_cast<float>(std::sin(i)), before = static_cast<float>(std::sin(3 * i + 1));
      float parameter = 0, mean = before, square = 1;
      update(AdamStep{.beta1 = beta1, .beta2 = 0.5, .eps = 1},
             Range<float>{&parameter, &gradient, {&mean, &square}, 1});
      const double apart = double{gradient} - before, exact = before + apart * (1 - beta1);
      const double of_other = 4 * kRounding * std::abs(apart) * std::min(beta1, 1 - beta1);
      EXPECT_NEAR(mean, exact, kRounding * std::abs(exact) * (1 + 1e-6) + of_other) << beta1 << ' ' << i;
    }
}

TEST(OptimUpdate, AnInfiniteParameterWithoutDecayStaysInfinite) {
  float parameter = std::numeric_limits<float>::infinity();
  const float gradient = 1;
  update(SgdStep{.learning_rate = 0.1}, Range<float>{&parameter, &gradient, {}, 1});
  EXPECT_TRUE(std::isinf(parameter));
}

template <class T>
void expect_same_sums() {
  for (const auto count : kCounts) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(static_cast<T>(std::sin(static_cast<double>(i)) * 3));
    long double exact = 0;
    for (const auto value : values) exact += static_cast<long double>(value) * static_cast<long double>(value);
    const auto expected = loops<T>(InstructionSet::baseline).sum_of_squares(values.data(), count);
    EXPECT_NEAR(expected, static_cast<double>(exact), 1e-14 * static_cast<double>(exact));
    for (const auto set : kInstructionSets) {
      if (has(set)) {
        EXPECT_EQ(loops<T>(set).sum_of_squares(values.data(), count), expected) << name_of(set) << ' ' << count;
      }
    }
  }
}

TEST(OptimUpdate, SumsOfSquaresHaveTheSameBitsByEveryInstructionSet) {
  expect_same_sums<float>();
  expect_same_sums<double>();
}

TEST(OptimUpdate, ASumOfSquaresOfFloatsIsFiniteExactlyIfAllAre) {
  for (std::size_t place = 0; place < 70; ++place) {
    std::vector<float> values(70, std::numeric_limits<float>::max());
    EXPECT_TRUE(std::isfinite(sum_of_squares(values.data(), values.size())));
    values[place] = place % 2 == 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(sum_of_squares(values.data(), values.size()))) << place;
  }
}

}  // namespace
}  // namespace ddp::optim
