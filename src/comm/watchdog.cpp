#include "comm/watchdog.hpp"

#include <algorithm>

#include "comm/hang_report.hpp"
#include "comm/text_of.hpp"
#include "comm/watch_socket.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPace{1};
// A stopped rank is to be named within five seconds: two, a question's limit, and the same again to be sure.
constexpr seconds kFirstLook{2};
constexpr seconds kNextLook{5};  // below Question::kTurn, so that the rank that asks keeps its turn
constexpr milliseconds kAnswerLimit{1000};

milliseconds age_of(const Call& call) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - call.queued);
}

/// Messages are between two ranks, of which each speaks for itself.
std::uint32_t turn_for(const Call& call, std::uint32_t turn) { return call.number > 0 ? turn : 0; }

void say(const Call& call, const std::string& text) {
  log::all.warn("{} has lasted {}: {}", call.name(), in_seconds(age_of(call)), text);
}

/// Those that have not answered and should have.
std::set<int> silent_places(Session& session, const std::vector<std::string>& answers) {
  if (asked_over_nobody(session, answers)) return {0};
  std::set<int> silent;
  for (std::size_t place = 0; place < answers.size(); ++place) {
    const auto rank = session.ranks()[place];
    if (rank == session.origin().rank || !answers[place].empty()) continue;
    if (!session.health().departure(rank)) silent.insert(static_cast<int>(place));
  }
  return silent;
}

}  // namespace

Watchdog::Watchdog(Sessions sessions)
    : sessions_(std::move(sessions)), thread_("ddp-watchdog", [this](int stop) { run(stop); }) {}

void Watchdog::run(int stop) {
  for (pollfd end{stop, POLLIN, 0}; end.revents == 0; watch::poll_until({&end, 1}, Clock::now() + kPace)) {
    try {
      look_after_all();
    } catch (const std::exception& error) {  // no memory, which may be there at the next look
      log::all.debug("the watchdog cannot look: {}", error.what());
    }
  }
}

void Watchdog::look_after_all() {
  std::map<const Session*, Vigil> vigils;
  for (const auto& session : sessions_()) {
    auto& vigil = vigils[session.get()] = vigils_[session.get()];
    if (!session->has_left() && !session->health().breakage()) look_after(*session, vigil);
  }
  vigils_.swap(vigils);
}

void Watchdog::look_after(Session& session, Vigil& vigil) {
  const auto call = session.recorder().oldest_open();
  if (!call || age_of(*call) < kFirstLook) return;
  if (vigil.ticket != call->ticket + 1) vigil = {call->ticket + 1, {}, 0, {}, {}};
  if (Clock::now() >= vigil.next_look) look_for_silent(session, *call, vigil);
  const auto first = session.warn_after();
  if (first > milliseconds(0) && age_of(*call) >= first * (1U << std::min(vigil.warned, 20U)))
    warn(session, *call, vigil);
}

void Watchdog::look_for_silent(Session& session, const Call& call, Vigil& vigil) {
  vigil.next_look = Clock::now() + kNextLook;
  const auto answers =
      session.ask({Question::Kind::status, call.number, turn_for(call, 1)}, kAnswerLimit, held_ranks(session));
  if (!answers) return;
  HangCase hang{call.number, call.peer, false, call.step, {}};
  auto silent = silent_places(session, *answers);
  for (const int place : silent) {
    auto seen = seen_from_here(session, static_cast<std::size_t>(place));
    // A busy machine may keep a rank from answering once.
    const bool is_sure = vigil.silent.contains(place) || (seen.main_seen && is_held(seen.main_seen->hindrance));
    if (!is_sure) vigil.next_look = Clock::now();
    if (is_sure && vigil.named.insert(place).second) hang.ranks.push_back(std::move(seen));
  }
  std::erase_if(vigil.named, [&](int place) { return !silent.contains(place); });
  vigil.silent = std::move(silent);
  if (hang.ranks.empty()) return;
  const auto verdict = judge_hang(hang);
  say(call, verdict.text + "; " + verdict.remedy);
}

void Watchdog::warn(Session& session, const Call& call, Vigil& vigil) {
  const auto report = hang_report(session, call, turn_for(call, 1 + vigil.warned));
  while (vigil.warned < 20 && age_of(call) >= session.warn_after() * (1U << vigil.warned)) ++vigil.warned;
  const auto still_open = session.recorder().oldest_open();
  if (report && still_open && still_open->ticket == call.ticket && !session.health().breakage())
    say(call, report->text());
}

}  // namespace ddp::comm
