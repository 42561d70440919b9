#include "start/outcome.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <tuple>

#include "base/exit_code.hpp"
#include "start/signal_name.hpp"

namespace ddp::start {
namespace {

bool ended_by_us(const Outcome& outcome) {
  return WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == outcome.sent;
}

bool only_lost_a_peer(const Outcome& outcome) {
  return WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == kLostPeerExitCode;
}

bool has_stalled(const Outcome& outcome) {
  return WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == kStalledExitCode;
}

/// Smaller: rather the cause than an echo of it.
int suspicion(const Outcome& outcome) {
  if (WIFSIGNALED(outcome.status)) return WTERMSIG(outcome.status) == SIGABRT ? 2 : 0;
  return WEXITSTATUS(outcome.status) == 1 ? 2 : has_stalled(outcome) ? 3 : 1;
}

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time.count()) / 1000);
  return text;
}

std::string how(const Outcome& outcome) {
  if (has_stalled(outcome)) return "exit code " + std::to_string(kStalledExitCode) + ", a call that did not end";
  if (!WIFSIGNALED(outcome.status)) return "exit code " + std::to_string(WEXITSTATUS(outcome.status));
  const int signal = WTERMSIG(outcome.status);
  std::string text = "killed by " + signal_name(signal) + " (signal " + std::to_string(signal) + ")";
  if (WCOREDUMP(outcome.status)) text += ", core dumped";
  if (ended_by_us(outcome)) return text + ", sent by ddprun";
  if (signal == SIGKILL) text += ", not by ddprun; perhaps out of memory (see dmesg)";
  return text;
}

std::string role(const Outcome& outcome) {
  if (!outcome.failed() || ended_by_us(outcome)) return "";
  if (only_lost_a_peer(outcome)) return ", because it lost a peer";
  if (has_stalled(outcome)) return "";
  if (outcome.sent != 0) return ", after ddprun had sent " + signal_name(outcome.sent);
  return WIFSIGNALED(outcome.status) ? ", on its own" : ", most likely because of the first";
}

}  // namespace

int Outcome::exit_code() const { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

const Outcome* first_failure(const std::vector<Outcome>& outcomes) {
  constexpr std::chrono::milliseconds kTogether{100};
  std::optional<std::chrono::milliseconds> earliest;
  for (const auto& outcome : outcomes) {
    if (!earliest && outcome.failed() && outcome.sent == 0 && !only_lost_a_peer(outcome)) earliest = outcome.after;
  }
  const auto order = [&](const Outcome& outcome) {
    const bool late = earliest && outcome.after > *earliest + kTogether;
    return std::tuple(outcome.sent != 0, only_lost_a_peer(outcome), late, suspicion(outcome));
  };
  const Outcome* first = nullptr;
  for (const auto& outcome : outcomes) {
    if (outcome.failed() && (!first || order(outcome) < order(*first))) first = &outcome;
  }
  return first;
}

std::vector<std::string> summary(const std::vector<Outcome>& outcomes) {
  const Outcome* const first = first_failure(outcomes);
  if (!first) return {};
  std::vector<std::string> lines;
  const bool by_itself = first->sent == 0;
  if (by_itself) {
    const auto* const what = has_stalled(*first) ? " gave up first, " : " failed first, ";
    const auto* const whose = has_stalled(*first) ? "; its error names who held it up" : "";
    lines.push_back("rank " + std::to_string(first->rank) + what + seconds(first->after) +
                    " after the start: " + how(*first) + whose);
  }
  auto others = outcomes;
  std::ranges::sort(others, {}, &Outcome::rank);
  for (const auto& other : others) {
    if (by_itself && other.rank == first->rank) continue;
    lines.push_back("  rank " + std::to_string(other.rank) + ", at " + seconds(other.after) + ": " + how(other) +
                    role(other));
  }
  return lines;
}

}  // namespace ddp::start
