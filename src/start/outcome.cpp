#include "start/outcome.hpp"

#include <sys/wait.h>

#include <csignal>
#include <optional>
#include <tuple>

#include "base/exit_code.hpp"
#include "start/signal_name.hpp"

namespace ddp::start {
namespace {

/// Smaller: rather the cause than an echo of it.
int suspicion(const Outcome& outcome) {
  if (WIFSIGNALED(outcome.status)) return WTERMSIG(outcome.status) == SIGABRT ? 2 : 0;
  return WEXITSTATUS(outcome.status) == 1 ? 2 : has_stalled(outcome) ? 3 : 1;
}

}  // namespace

int Outcome::exit_code() const { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

bool ended_by_launcher(const Outcome& outcome) {
  return WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == outcome.sent;
}

bool only_lost_a_peer(const Outcome& outcome) {
  return WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == kLostPeerExitCode;
}

bool has_stalled(const Outcome& outcome) {
  return WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == kStalledExitCode;
}

std::string how(const Outcome& outcome) {
  if (has_stalled(outcome)) return "exit code " + std::to_string(kStalledExitCode) + ", a call that did not end";
  if (!WIFSIGNALED(outcome.status)) return "exit code " + std::to_string(WEXITSTATUS(outcome.status));
  const int signal = WTERMSIG(outcome.status);
  std::string text = "killed by " + signal_name(signal) + " (signal " + std::to_string(signal) + ")";
  if (WCOREDUMP(outcome.status)) text += ", core dumped";
  if (ended_by_launcher(outcome)) return text + ", sent by ddprun";
  if (signal == SIGKILL) text += ", not by ddprun; perhaps out of memory (see dmesg)";
  return text;
}

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

}  // namespace ddp::start
