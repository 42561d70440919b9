#include "reduce/fault_text.hpp"

#include <cstddef>
#include <map>
#include <sstream>

namespace ddp {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

std::string named(const Parameter& parameter) {
  std::ostringstream text;
  text << parameter.name << ' ' << parameter.tensor.sizes();
  return text.str();
}

std::string scaled(float scale) {
  if (scale == 0) return "not at all";
  std::ostringstream text;
  text << "by " << scale;
  return text.str();
}

std::string described(const std::vector<std::string>& faults) {
  std::map<std::string, std::vector<std::string>> ranks_of;
  for (std::size_t rank = 0; rank < faults.size(); ++rank)
    if (!faults[rank].empty()) ranks_of[faults[rank]].push_back(std::to_string(rank));
  std::vector<std::string> texts;
  for (const auto& [fault, ranks] : ranks_of)
    texts.push_back((ranks.size() == 1 ? "on rank " : "on ranks ") + joined(ranks) + ": " + fault);
  return joined(texts);
}

}  // namespace ddp
