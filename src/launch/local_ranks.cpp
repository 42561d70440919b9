#include "launch/local_ranks.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "launch/processes.hpp"
#include "launch/say.hpp"
#include "start/signal_name.hpp"

namespace ddp::launch {

using start::signal_name;

namespace {

using std::chrono::milliseconds;

// A peer learns of a failure within milliseconds where it waits for the others, and otherwise at its next collective:
// less would cut off its message, more would keep a hung one.
constexpr milliseconds kGrace{3000};
constexpr milliseconds kPatienceAfterFailure{5000};
constexpr milliseconds kPatienceAfterSignal{30000};  // ranks may be saving a checkpoint; torchrun's value
constexpr milliseconds kPatienceAfterKill{10000};    // only a process stuck in the kernel outlives SIGKILL
constexpr milliseconds kLook{50};                    // at leftovers, of whose end no signal may come

std::string in_words(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return ranks.empty() ? text : (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

bool is_empty(pid_t group) { return ::kill(-group, 0) != 0; }

}  // namespace

LocalRanks::LocalRanks(std::optional<milliseconds> shutdown_timeout, Watcher& watcher, std::function<void()> restore)
    : shutdown_timeout_(shutdown_timeout), watcher_(watcher), restore_(std::move(restore)) {
  // Orphans of the ranks become our children, so that their end is seen and they are reaped.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

LocalRanks::~LocalRanks() {
  for (auto& group : groups_) {
    if (group.state == State::gone) continue;
    ::kill(-group.pid, SIGKILL);
    if (group.state == State::running) ::waitpid(group.pid, nullptr, 0);
    watcher_.forget(group.pid);
  }
}

void LocalRanks::start(int rank, const RankStart& start) {
  const auto in_child = [this] {
    watcher_.add(::getpid());
    restore_();
  };
  groups_.push_back({.rank = rank, .pid = start::start_rank(start, in_child), .limit = {}});
}

std::vector<Outcome> LocalRanks::look() {
  reap();
  look_after_leftovers();
  on_deadline();
  return std::exchange(ended_, {});
}

std::optional<Clock::time_point> LocalRanks::next_look() const {
  auto next = deadline_;
  if (has_leftovers()) next = std::min(next.value_or(Clock::time_point::max()), Clock::now() + kLook);
  return next;
}

bool LocalRanks::has_leftovers() const {
  return std::ranges::any_of(groups_, [](const Group& group) { return group.state == State::leftovers; });
}

bool LocalRanks::are_gone() const {
  return std::ranges::all_of(groups_, [](const Group& group) { return group.state == State::gone; });
}

void LocalRanks::let_end(bool has_waited) {
  if (phase_ == Phase::running) enter(Phase::grace, has_waited ? milliseconds(0) : kGrace);
}

void LocalRanks::pass_on(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return ask(signal);
  // Launchers of several nodes may each be sent what is one: a rank that saves must not get it twice.
  if (!passed_on_.insert(signal).second) return;
  const auto ranks = running();
  if (!ranks.empty()) say("passing " + signal_name(signal) + " on to " + ranks);
  is_signalled_ = true;
  send_all(signal);
  if (phase_ < Phase::stopping) enter(Phase::stopping, patience(kPatienceAfterSignal));
}

void LocalRanks::kill() {
  const auto ranks = running();
  if (!ranks.empty()) say("killing " + ranks);
  send_all(SIGKILL);
  enter(Phase::killing, kPatienceAfterKill);
}

// To those who handle it alone: it would end a shell around a rank, and a rank that has not come to its process group.
void LocalRanks::ask(int signal) {
  std::vector<int> asked, deaf;
  for (const auto& group : groups_) {
    if (group.state != State::running) continue;
    auto family = descendants_of(group.pid);
    if (const auto leader = find_process(group.pid)) family.push_back(*leader);
    std::erase_if(family, [signal](const Process& one) { return !one.catches(signal); });
    for (const auto& one : family) ::kill(one.pid, signal);
    (family.empty() ? deaf : asked).push_back(group.rank);
  }
  const auto name = signal_name(signal);
  if (!asked.empty()) say("passing " + name + " on to " + in_words(asked));
  if (!deaf.empty()) say("not passing " + name + " on to " + in_words(deaf) + ", which would end by it");
}

void LocalRanks::reap() {
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

void LocalRanks::rank_ended(Group& group, int status) {
  ended_.push_back({.rank = group.rank,
                    .status = status,
                    .sent = group.sent,
                    .after = std::chrono::duration_cast<milliseconds>(Clock::now() - start_)});
  group.state = State::leftovers;
  // A shell around the program may end before it.
  group.limit = Clock::now() + patience(is_signalled_ ? kPatienceAfterSignal : kPatienceAfterFailure);
  close_if_empty(group);
}

void LocalRanks::look_after_leftovers() {
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

void LocalRanks::on_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  deadline_.reset();
  const auto ranks = running();
  if (ranks.empty()) return;
  switch (phase_) {
    case Phase::running:
      break;
    case Phase::grace:
      say(ranks + (ranks.starts_with("ranks") ? " still run" : " still runs") + ": sending SIGTERM");
      send_all(SIGTERM);
      enter(Phase::stopping, patience(kPatienceAfterFailure));
      break;
    case Phase::stopping:
      say(ranks + " did not end: sending SIGKILL");
      send_all(SIGKILL);
      enter(Phase::killing, kPatienceAfterKill);
      break;
    case Phase::killing:
      say(ranks + " cannot be killed, stuck in the kernel");
      for (auto& group : groups_) {
        if (group.state == State::running) rank_ended(group, SIGKILL);
        group.state = State::gone;
      }
      break;
  }
}

void LocalRanks::enter(Phase phase, milliseconds limit) {
  phase_ = phase;
  deadline_ = Clock::now() + limit;
}

void LocalRanks::send_all(int signal) {
  for (auto& group : groups_) {
    if (group.state != State::gone) send(group, signal);
  }
}

void LocalRanks::send(Group& group, int signal) {
  group.sent = signal;
  ::kill(-group.pid, signal);
  ::kill(-group.pid, SIGCONT);  // a stopped process would not see it
}

void LocalRanks::close_if_empty(Group& group) {
  if (!is_empty(group.pid)) return;
  group.state = State::gone;
  watcher_.forget(group.pid);
}

std::string LocalRanks::running() const {
  std::vector<int> ranks;
  for (const auto& group : groups_) {
    if (group.state == State::running) ranks.push_back(group.rank);
  }
  return in_words(ranks);
}

pid_t LocalRanks::process_of(int rank) const {
  for (const auto& group : groups_) {
    if (group.rank == rank && group.state == State::running) return group.pid;
  }
  return 0;
}

milliseconds LocalRanks::patience(milliseconds fallback) const { return shutdown_timeout_.value_or(fallback); }

}  // namespace ddp::launch
