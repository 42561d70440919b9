#include "report/axis_ticks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace ddp::report {
namespace {

struct Step {
  double size = 1;
  int exponent = 0;  ///< of its power of ten
};

/// The smallest that gives at most `most` ticks.
Step step_for(double low, double high, int most) {
  const auto ticks = [&](double size) { return std::floor(high / size) - std::ceil(low / size) + 1; };
  int exponent = static_cast<int>(std::floor(std::log10((high - low) / most)));
  for (;; ++exponent) {  // a power of ten or two further on, since (high - low) / size falls below one
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double size = digit * std::pow(10.0, exponent);
      if (ticks(size) <= most) return {.size = size, .exponent = exponent};
    }
  }
}

std::string label_of(double value, const Step& step, double largest) {
  std::array<char, 64> text{};
  if (largest < 1e7 && step.exponent >= -6) {
    std::snprintf(text.data(), text.size(), "%.*f", std::max(0, -step.exponent), value);
  } else {
    const int digits = static_cast<int>(std::floor(std::log10(largest))) - step.exponent + 1;
    std::snprintf(text.data(), text.size(), "%.*g", std::clamp(digits, 1, 15), value);
  }
  return text.data();
}

}  // namespace

std::vector<Tick> axis_ticks(double low, double high, int most) {
  const auto step = step_for(low, high, most);
  const double largest = std::max(std::abs(low), std::abs(high));
  std::vector<Tick> ticks;
  const double first = std::ceil(low / step.size), last = std::floor(high / step.size);
  for (int i = 0; i < most && first + i <= last; ++i) {
    const double value = (first + i) * step.size + 0.0;  // + 0.0: no negative zero
    ticks.push_back({.value = value, .label = label_of(value, step, largest)});
  }
  return ticks;
}

}  // namespace ddp::report
