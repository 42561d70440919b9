#include "comm/hang_report.hpp"

#include <algorithm>
#include <iterator>

#include "comm/text_of.hpp"

namespace ddp::comm {
namespace {

using std::chrono::milliseconds;

// A rank looks at its own thread for a tenth of a second and waits a fifth for its stack; the rest is for names of
// functions and for a busy machine.
constexpr milliseconds kReportLimit{2000};
constexpr milliseconds kLook{20};

}  // namespace

std::string HangReport::text() const { return verdict.text + "; " + verdict.remedy + lines; }

std::string timeout_text(Session& session, const Call& call, std::chrono::milliseconds limit) {
  return "timed out after " + in_seconds(limit) + ": " + hang_report(session, call).value().text();
}

std::vector<bool> held_ranks(const Session& session) {
  const auto& arrivals = session.arrivals();
  const auto& own = session.own_arrival();
  std::vector<bool> held;
  for (const auto& arrival : arrivals) {
    const auto process = static_cast<pid_t>(arrival.pid);
    const auto sample = arrival.host == own.host ? sample_thread({process, process}) : std::nullopt;
    held.push_back(sample && is_held(judge({&*sample, 1}).hindrance));
  }
  if (held.front())
    for (std::size_t place = 0; place < held.size(); ++place) held[place] = &arrivals[place] != &own;
  return held;
}

bool asked_over_nobody(const Session& session, const std::vector<std::string>& answers) {
  if (session.ranks().front() == session.origin().rank || answers.size() < 3) return false;
  return std::count(answers.begin(), answers.end(), std::string()) + 1 == std::ssize(answers);
}

HangRank seen_from_here(const Session& session, std::size_t place) {
  const auto& arrival = session.arrivals()[place];
  HangRank rank;
  rank.rank = session.ranks()[place];
  rank.process = "process " + std::to_string(arrival.pid) + " on " + arrival.host;
  if (arrival.host != session.own_arrival().host) return rank;
  const auto process = static_cast<pid_t>(arrival.pid);
  rank.main_seen = hindrance_of({process, process}, kLook);
  return rank;
}

std::optional<HangReport> hang_report(Session& session, const Call& call, std::uint32_t turn) {
  const auto answers = session.ask({Question::Kind::report, call.number, turn}, kReportLimit, held_ranks(session));
  if (!answers) return std::nullopt;
  HangCase hang{call.number, call.peer, call.meeting == Meeting::plan, call.step, {}};
  const bool is_rank_0_silent = asked_over_nobody(session, *answers);
  for (std::size_t place = 0; place < answers->size(); ++place) {
    const auto rank = session.ranks()[place];
    if (auto report = decode_report((*answers)[place]))
      hang.ranks.push_back({.rank = rank, .report = std::move(report)});
    else if (place > 0 && is_rank_0_silent)
      hang.ranks.push_back({.rank = rank, .is_unasked = true});
    else
      hang.ranks.push_back(seen_from_here(session, place));
  }
  return HangReport{judge_hang(hang), rank_lines(hang.ranks)};
}

}  // namespace ddp::comm
