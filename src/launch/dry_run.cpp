#include "launch/dry_run.hpp"

#include <ostream>

namespace ddp::launch {
namespace {

/// As a shell would take it.
std::string quoted(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:=@%,";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char one : word) text += one == '\'' ? std::string("'\\''") : std::string(1, one);
  return text + "'";
}

std::string list(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

}  // namespace

void show(const RankPlan& plan, std::ostream& out) {
  for (int local = 0; local < plan.job.ranks; ++local) {
    out << "# rank " << plan.job.first_rank + local << " of " << plan.job.world_size;
    if (!plan.cores.empty()) out << ", on the cores " << list(plan.cores[static_cast<std::size_t>(local)]);
    out << "\n";
    for (const auto& entry : start::rank_environment({}, plan.job, local)) {
      const auto equals = entry.find('=') + 1;
      const bool is_open = entry == "MASTER_PORT=0";  // chosen when it starts
      out << entry.substr(0, equals) << (is_open ? "ANY_FREE_PORT" : quoted(entry.substr(equals))) << " ";
    }
    out << "\\\n ";
    out << " " << quoted(plan.program);
    for (std::size_t i = 1; i < plan.arguments.size(); ++i) out << " " << quoted(plan.arguments[i]);
    out << "\n";
  }
}

}  // namespace ddp::launch
