#include "comm/inspection_answer.hpp"

#include <unistd.h>

#include <algorithm>
#include <future>

#include "base/thread_state.hpp"
#include "comm/signature.hpp"

namespace ddp::comm {
namespace {

constexpr std::size_t kMostGroups = 16;  // of which each takes a thread while it is asked

bool is_rank_of(const ProcessKey& process, const Session& session) {
  if (process.pid_namespace != own_process_key().pid_namespace) return false;
  const auto& host = session.own_arrival().host;
  return std::any_of(session.arrivals().begin(), session.arrivals().end(),
                     [&](const Arrival& one) { return one.host == host && one.pid == process.pid; });
}

// "broken: rank 1 failed: ...", without the lines that may follow.
std::string first_line_of(const Breakage& breakage) {
  try {
    breakage.raise({}, "broken");
  } catch (const Error& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
}

std::string group_line(Session& session) {
  const auto size = session.ranks().size();
  std::string text;
  if (size == static_cast<std::size_t>(session.origin().world_size))
    text = "group of all " + std::to_string(size) + " ranks";
  else
    text = "group of ranks " + listed(session.ranks());
  const auto backend = session.backend();
  text += backend.empty() ? ", still connecting" : ", backend " + backend;
  if (const auto breakage = session.health().breakage()) text += ", " + first_line_of(*breakage);
  return text + '\n';
}

std::string rank_lines(const Session& session, const std::vector<std::string>& statuses) {
  const auto& host = session.own_arrival().host;
  std::string text;
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    const auto& arrival = session.arrivals()[i];
    text += "  rank " + std::to_string(session.ranks()[i]) + " (process " + std::to_string(arrival.pid);
    if (arrival.host != host) text += " on " + arrival.host;
    text += "): " + (statuses[i].empty() ? "no answer" : statuses[i]) + '\n';
  }
  const auto is_silent = [](const std::string& status) { return status.empty(); };
  if (statuses.size() > 2 && is_silent(statuses[0]) && std::count_if(statuses.begin(), statuses.end(), is_silent) > 1)
    text += "  the ranks are asked over the first one, which is silent: ask the others one by one\n";
  return text;
}

}  // namespace

std::string inspection_answer(const std::vector<std::shared_ptr<Session>>& sessions,
                              const std::optional<ProcessKey>& about) {
  const auto concerns = [&](const auto& session) { return !about || is_rank_of(*about, *session); };
  if (std::none_of(sessions.begin(), sessions.end(), concerns)) return {};
  const auto& self = *sessions.front();
  const auto& arrival = self.own_arrival();
  const auto process = ::getpid();
  auto text = "rank " + std::to_string(self.origin().rank) + " of " + std::to_string(self.origin().world_size) +
              ", process " + std::to_string(arrival.pid) + " on " + arrival.host + ", whose main thread " +
              described(hindrance_of({process, process})) + ":\n";
  std::vector<std::shared_ptr<Session>> open;
  for (const auto& session : sessions)
    if (!session->has_left()) open.push_back(session);
  if (open.empty()) return text + "has left its group, and stays for ranks that have not\n";
  const auto hidden = open.size() - std::min(open.size(), kMostGroups);
  open.resize(open.size() - hidden);
  std::vector<std::future<std::vector<std::string>>> statuses;  // all at a time, for a silent rank takes its second
  for (const auto& session : open) statuses.push_back(std::async([session] { return session->statuses(); }));
  for (std::size_t i = 0; i < open.size(); ++i) text += group_line(*open[i]) + rank_lines(*open[i], statuses[i].get());
  if (hidden > 0) text += "and " + std::to_string(hidden) + " more groups\n";
  return text;
}

}  // namespace ddp::comm
