#include "start/spawned_ranks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

namespace ddp::start {
namespace {

using std::chrono::milliseconds;

// As of ddprun: a peer learns of a failure within milliseconds where it waits for the others, and otherwise at its next
// collective: less would cut off its message, more would keep a hung one.
constexpr milliseconds kGrace{3000};
constexpr milliseconds kLongest = std::chrono::hours(24);  // poll() could not wait for milliseconds::max()
constexpr milliseconds kPatienceAfterKill{10000};          // only a process stuck in the kernel outlives SIGKILL

// Of a rank that left early with 0, or whose end nobody knows: no code that says or may say that it is an echo.
constexpr int kLeftEarly = 2;

int exit_status(int code) { return code << 8; }

}  // namespace

SpawnedRanks::SpawnedRanks(milliseconds patience) : patience_(std::clamp(patience, milliseconds(0), kLongest)) {}

void SpawnedRanks::add(int rank, pid_t pid, Descriptor report) {
  ::fcntl(report.get(), F_SETFL, O_NONBLOCK);
  ranks_.push_back({.rank = rank, .process = Child(pid), .report = std::move(report)});
}

void SpawnedRanks::wait() {
  while (std::ranges::any_of(ranks_, &Rank::is_running)) {
    wait_for_event();
    for (auto& rank : ranks_) {
      if (rank.is_running) look_at(rank);
    }
    on_deadline();
  }
}

const SpawnedRanks::Rank* SpawnedRanks::first_failed() const {
  std::vector<Outcome> outcomes;
  for (const auto& rank : ranks_) {
    if (rank.failure) outcomes.push_back(*rank.failure);
  }
  std::ranges::stable_sort(outcomes, {}, &Outcome::after);
  const auto* const first = first_failure(outcomes);
  if (first == nullptr) return nullptr;
  return &*std::ranges::find(ranks_, first->rank, &Rank::rank);
}

void SpawnedRanks::wait_for_event() const {
  std::vector<pollfd> events;
  for (const auto& rank : ranks_) {
    if (!rank.is_running) continue;
    events.push_back({rank.process.descriptor(), POLLIN, 0});
    events.push_back({rank.report.get(), POLLIN, 0});
    if (rank.process.descriptor() < 0) return;  // it has ended
  }
  milliseconds limit{-1};
  if (deadline_) limit = std::max(milliseconds(0), std::chrono::ceil<milliseconds>(*deadline_ - Clock::now()));
  ::poll(events.data(), events.size(), static_cast<int>(limit.count()));
}

void SpawnedRanks::listen(Rank& rank) {
  std::array<char, 4096> bytes{};
  while (rank.report.get() >= 0) {
    const ssize_t size = ::read(rank.report.get(), bytes.data(), bytes.size());
    if (size > 0) rank.heard.add({bytes.data(), static_cast<std::size_t>(size)});
    if (size < 0 && errno == EAGAIN) return;
    if (size == 0 || (size < 0 && errno != EINTR)) rank.report.close();
  }
}

// What it has reported before its end is in the pipe by then.
void SpawnedRanks::look_at(Rank& rank) {
  using Stage = SpawnHeard::Stage;
  const bool has_ended = rank.process.has_ended();
  listen(rank);
  const auto stage = rank.heard.stage();
  if (stage == Stage::threw) note_failure(rank, exit_status(rank.heard.exit_code()));
  if (!has_ended) return;
  rank.is_running = false;
  const auto status = rank.process.status();
  if (stage == Stage::done && status.value_or(0) == 0) return;
  note_failure(rank, status.value_or(0) != 0 ? *status : exit_status(kLeftEarly));
}

// The first that is known of it counts: what it reports comes before its end, and before what it is sent.
void SpawnedRanks::note_failure(Rank& rank, int status) {
  if (rank.failure) return;
  rank.failure = Outcome{.rank = rank.rank,
                         .status = status,
                         .sent = rank.sent,
                         .after = std::chrono::duration_cast<milliseconds>(Clock::now() - start_)};
  if (phase_ == Phase::running) enter(Phase::grace, kGrace);
}

void SpawnedRanks::on_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  switch (phase_) {
    case Phase::running:
      break;
    case Phase::grace:
      send_all(SIGTERM);
      enter(Phase::stopping, patience_);
      break;
    case Phase::stopping:
      send_all(SIGKILL);
      enter(Phase::killing, kPatienceAfterKill);
      break;
    case Phase::killing:  // stuck in the kernel
      for (auto& rank : ranks_) {
        if (rank.is_running) note_failure(rank, SIGKILL);
        rank.is_running = false;
      }
      break;
  }
}

void SpawnedRanks::enter(Phase phase, milliseconds limit) {
  phase_ = phase;
  deadline_ = Clock::now() + limit;
}

void SpawnedRanks::send_all(int signal) {
  for (auto& rank : ranks_) {
    if (!rank.is_running) continue;
    rank.sent = signal;
    rank.process.send(signal);
    rank.process.send(SIGCONT);  // a stopped process would not see it
  }
}

}  // namespace ddp::start
