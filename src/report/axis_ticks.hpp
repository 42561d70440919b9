#pragma once
/// axis_ticks.hpp: the round numbers along an axis.

#include <string>
#include <vector>

namespace ddp::report {

struct Tick {
  double value = 0;
  std::string label;
};

/// The multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most `most` (2 or more) of them, with
/// labels of as many digits as tell them apart. `low` < `high`, both of at most 1e300.
std::vector<Tick> axis_ticks(double low, double high, int most);

}  // namespace ddp::report
