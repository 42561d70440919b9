#pragma once
/// fault_text.hpp: the words in which a step's faults are told.

#include <string>
#include <vector>

#include "reduce/parameter.hpp"

namespace ddp {

/// "a, b, c"
std::string joined(const std::vector<std::string>& words);

/// "fc.weight [10, 20]"
std::string named(const Parameter& parameter);

/// "by 1024"; "not at all" for 0.
std::string scaled(float scale);

/// "on ranks 0, 2: <fault>", each different fault once. `faults`: one a rank, empty where there is none.
std::string described(const std::vector<std::string>& faults);

}  // namespace ddp
