#pragma once
/// ddprun_jobs.hpp: jobs of rank_probe under ddprun. DDPRUN and RANK_PROBE are the paths of the programs.

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "process/launched.hpp"

namespace ddp::test {

using Words = std::vector<std::string>;

inline Launched ddprun(const Words& words, const std::function<void()>& before_exec = [] {}) {
  Words all{DDPRUN};
  all.insert(all.end(), words.begin(), words.end());
  return Launched(std::move(all), before_exec);
}

inline Launched ranks(int number, const Words& action, const Words& flags = {}) {
  Words words{"--nproc-per-node", std::to_string(number)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(RANK_PROBE);
  words.insert(words.end(), action.begin(), action.end());
  return ddprun(words);
}

/// A rank's line without what ddprun has put before it: "[rank 1] [1] open" is "[1] open", where the two agree.
inline std::string without_prefix(const std::string& line) {
  if (!line.starts_with("[rank ")) return line;
  const auto own = "[" + line.substr(6, line.find(']') - 6) + "] ";
  const auto rest = line.substr(line.find(']') + 2);
  return !rest.starts_with("[") || rest.starts_with(own) ? rest : "of another rank: " + line;
}

/// The lines that contain `word`, sorted.
inline Words lines_with(const std::string& text, const std::string& word) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    line = without_prefix(line);
    if (line.find(word) != std::string::npos) lines.push_back(line);
  }
  std::ranges::sort(lines);
  return lines;
}

}  // namespace ddp::test
