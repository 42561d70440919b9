#include "launch/summary.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <sstream>

#include "start/signal_name.hpp"

namespace ddp::launch {

using namespace start;

namespace {

constexpr std::size_t kMostLines = 40;  // a screen; the first failure is above them

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time.count()) / 1000);
  return text;
}

std::string time_of_day(std::chrono::system_clock::time_point when) {
  const auto time = std::chrono::system_clock::to_time_t(when);
  std::tm parts{};
  ::localtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string role(const Outcome& outcome) {
  if (!outcome.failed() || ended_by_launcher(outcome)) return "";
  if (only_lost_a_peer(outcome)) return ", because it lost a peer";
  if (has_stalled(outcome)) return "";
  if (outcome.sent != 0) return ", after ddprun had sent " + signal_name(outcome.sent);
  return WIFSIGNALED(outcome.status) ? ", on its own" : ", most likely because of the first";
}

std::string first_line(const Outcome& first, std::chrono::system_clock::time_point begin) {
  const bool stalled = has_stalled(first);
  auto line = "rank " + std::to_string(first.rank) + (stalled ? " gave up first, " : " failed first, ") +
              seconds(first.after) + " after the start (" + time_of_day(begin + first.after);
  if (!first.host.empty()) line += " on " + first.host;
  line += "): " + how(first);
  if (stalled) line += "; its error names who held it up";
  return line;
}

void add_last_words(std::vector<std::string>& lines, const Report& report, int rank) {
  const auto tail = report.tails.find(rank);
  if (tail == report.tails.end() || report.outcomes.size() == 1) return;  // one rank's words stand right above
  lines.emplace_back("  its last lines on standard error:");
  std::istringstream words(tail->second);
  for (std::string word; std::getline(words, word);) lines.push_back("    | " + word);
}

}  // namespace

std::vector<std::string> summary(const Report& report) {
  const Outcome* const first = first_failure(report.outcomes);
  if (!first) return {};
  std::vector<std::string> lines;
  const bool by_itself = first->sent == 0;
  if (by_itself) {
    lines.push_back(first_line(*first, report.begin));
    if (!has_stalled(*first)) add_last_words(lines, report, first->rank);  // all ranks have just said the same
  }
  auto others = report.outcomes;
  std::ranges::sort(others, {}, &Outcome::rank);
  if (by_itself) std::erase_if(others, [first](const Outcome& one) { return one.rank == first->rank; });
  const bool several_hosts =
      std::ranges::any_of(others, [first](const Outcome& one) { return one.host != first->host; });
  for (std::size_t i = 0; i < std::min(others.size(), kMostLines); ++i) {
    const auto& other = others[i];
    lines.push_back("  rank " + std::to_string(other.rank) + ", at " + seconds(other.after) +
                    (several_hosts ? " on " + other.host : std::string()) + ": " + how(other) + role(other));
  }
  if (others.size() > kMostLines) lines.push_back("  and " + std::to_string(others.size() - kMostLines) + " others");
  return lines;
}

}  // namespace ddp::launch
