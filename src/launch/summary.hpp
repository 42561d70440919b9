#pragma once
/// summary.hpp: what the user is told about a failed attempt.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "start/outcome.hpp"

namespace ddp::launch {

/// All that is known of an attempt once it is over.
struct Report {
  std::vector<start::Outcome> outcomes;  ///< of all ranks, in order of time
  std::map<int, std::string> tails;      ///< by rank: the last lines of its standard error
  std::chrono::system_clock::time_point begin;
};

/// The lines for the user; none when no rank failed. First whose failure counts, when, where, how, and its last words;
/// then the others, causes told apart from echoes.
std::vector<std::string> summary(const Report& report);

}  // namespace ddp::launch
