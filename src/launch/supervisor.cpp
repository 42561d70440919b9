#include "launch/supervisor.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "launch/processes.hpp"
#include "launch/say.hpp"
#include "start/signal_name.hpp"

namespace ddp::launch {
namespace {

using std::chrono::milliseconds;

// A peer learns of a failure within milliseconds where it waits for the others, and otherwise at its next collective:
// less would cut off its message, more would keep a hung one.
constexpr milliseconds kGrace{3000};
constexpr milliseconds kPatienceAfterFailure{5000};
constexpr milliseconds kPatienceAfterSignal{30000};  // ranks may be saving a checkpoint; torchrun's value
constexpr milliseconds kPatienceAfterKill{10000};    // only a process stuck in the kernel outlives SIGKILL
constexpr milliseconds kLook{50};                    // at leftovers, of whose end no signal may come

bool is_empty(pid_t group) { return ::kill(-group, 0) != 0; }

}  // namespace

Supervisor::Supervisor(const Options& options, Signals& signals, Watcher& watcher)
    : options_(options), signals_(signals), watcher_(watcher) {
  // Orphans of the ranks become our children, so that their end is seen and they are reaped.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Supervisor::~Supervisor() {
  for (auto& group : groups_) {
    if (group.state == State::gone) continue;
    ::kill(-group.pid, SIGKILL);
    if (group.state == State::running) ::waitpid(group.pid, nullptr, 0);
    watcher_.forget(group.pid);
  }
}

void Supervisor::start(const RankStart& start) {
  const int rank = static_cast<int>(groups_.size());
  groups_.push_back({.rank = rank, .pid = start::start_rank(start,
                                       [this] {
                                         watcher_.add(::getpid());
                                         signals_.restore();
                                       }),
                     .limit = {}});
}

void Supervisor::run() {
  const auto left = [](const Group& group) { return group.state != State::gone; };
  while (std::ranges::any_of(groups_, left)) {
    wait_for_event();
    while (const auto signal = signals_.next()) on_signal(*signal);
    reap();
    look_after_leftovers();
    on_deadline();
  }
}

void Supervisor::wait_for_event() {
  auto wait = milliseconds(-1);
  if (deadline_) wait = std::max(milliseconds(0), std::chrono::ceil<milliseconds>(*deadline_ - Clock::now()));
  const auto has_leftovers = [](const Group& group) { return group.state == State::leftovers; };
  if (std::ranges::any_of(groups_, has_leftovers)) wait = deadline_ ? std::min(wait, kLook) : kLook;
  pollfd queue{signals_.descriptor(), POLLIN, 0};
  ::poll(&queue, 1, static_cast<int>(wait.count()));
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) return;  // reap() looks
  if (signal == SIGUSR2) return ask_for_dumps();
  if (signal == SIGINT && phase_ >= Phase::stopping) {
    say("killing ranks " + running_ranks());
    send_all(SIGKILL);
    enter(Phase::killing, kPatienceAfterKill);
    return;
  }
  say("passing " + start::signal_name(signal) + " on to ranks " + running_ranks());
  send_all(signal);
  if (phase_ < Phase::stopping) enter(Phase::stopping, patience(kPatienceAfterSignal));
}

// To those who handle it alone: it would end a shell around a rank, and a rank that has not come to its process group.
void Supervisor::ask_for_dumps() {
  std::string asked, deaf;
  for (const auto& group : groups_) {
    if (group.state != State::running) continue;
    auto family = descendants_of(group.pid);
    if (const auto leader = find_process(group.pid)) family.push_back(*leader);
    std::erase_if(family, [](const Process& one) { return !one.catches(SIGUSR2); });
    for (const auto& one : family) ::kill(one.pid, SIGUSR2);
    auto& text = family.empty() ? deaf : asked;
    text += (text.empty() ? "" : ", ") + std::to_string(group.rank);
  }
  if (!asked.empty()) say("passing SIGUSR2 on to ranks " + asked);
  if (!deaf.empty()) say("not passing SIGUSR2 on to ranks " + deaf + ", which do not handle it and would end");
}

void Supervisor::reap() {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) break;
    const pid_t pid = info.si_pid;
    const auto group = std::ranges::find_if(groups_, [pid](const Group& one) { return one.pid == pid; });
    const bool is_rank = group != groups_.end() && group->state == State::running;
    // As long as the rank is not reaped its number cannot go to another group.
    if (is_rank) ::kill(-pid, phase_ == Phase::killing ? SIGKILL : SIGTERM);
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (is_rank) rank_ended(*group, status);
  }
}

void Supervisor::rank_ended(Group& group, int status) {
  outcomes_.push_back({.rank = group.rank,
                       .status = status,
                       .sent = group.sent,
                       .after = std::chrono::duration_cast<milliseconds>(Clock::now() - start_)});
  group.state = State::leftovers;
  group.limit = Clock::now() + patience(kPatienceAfterFailure);
  close_if_empty(group);
  if (status != 0 && phase_ == Phase::running) enter(Phase::grace, kGrace);
}

void Supervisor::look_after_leftovers() {
  for (auto& group : groups_) {
    if (group.state != State::leftovers) continue;
    close_if_empty(group);
    if (group.state == State::gone || Clock::now() < group.limit) continue;
    if (group.sent == SIGKILL) {  // it had its time after that, too
      say("processes of rank " + std::to_string(group.rank) + " outlive SIGKILL (process group " +
          std::to_string(group.pid) + ")");
      group.state = State::gone;
      continue;
    }
    send(group, SIGKILL);
    group.limit = Clock::now() + kPatienceAfterKill;
  }
}

void Supervisor::on_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  deadline_.reset();
  const auto ranks = running_ranks();
  if (ranks.empty()) return;
  switch (phase_) {
    case Phase::running:
      break;
    case Phase::grace:
      say("ranks " + ranks + " still run after another one failed: sending SIGTERM");
      send_all(SIGTERM);
      enter(Phase::stopping, patience(kPatienceAfterFailure));
      break;
    case Phase::stopping:
      say("ranks " + ranks + " did not end: sending SIGKILL");
      send_all(SIGKILL);
      enter(Phase::killing, kPatienceAfterKill);
      break;
    case Phase::killing:
      say("ranks " + ranks + " outlive SIGKILL, stuck in the kernel");
      for (auto& group : groups_) {
        if (group.state == State::running) rank_ended(group, SIGKILL);
        group.state = State::gone;
      }
      break;
  }
}

void Supervisor::enter(Phase phase, milliseconds limit) {
  phase_ = phase;
  deadline_ = Clock::now() + limit;
}

void Supervisor::send_all(int signal) {
  for (auto& group : groups_) {
    if (group.state != State::gone) send(group, signal);
  }
}

void Supervisor::send(Group& group, int signal) {
  group.sent = signal;
  ::kill(-group.pid, signal);
  ::kill(-group.pid, SIGCONT);  // a stopped process would not see it
}

void Supervisor::close_if_empty(Group& group) {
  if (!is_empty(group.pid)) return;
  group.state = State::gone;
  watcher_.forget(group.pid);
}

std::string Supervisor::running_ranks() const {
  std::string text;
  for (const auto& group : groups_) {
    if (group.state == State::running) text += (text.empty() ? "" : ", ") + std::to_string(group.rank);
  }
  return text;
}

milliseconds Supervisor::patience(milliseconds fallback) const { return options_.shutdown_timeout.value_or(fallback); }

}  // namespace ddp::launch
