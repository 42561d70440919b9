#pragma once
/// watch_questions.hpp: who has asked everybody, who has not answered yet, and whose turn it is to ask.

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "comm/peer_watch.hpp"
#include "comm/watch_socket.hpp"

namespace ddp::comm::watch {

/// A rank is sent one question at a time, however many wait for its answer: so nothing piles up
/// for a rank that is stopped.
class WatchQuestions {
 public:
  struct Asker {
    int rank;
    std::uint32_t id;
  };

  explicit WatchQuestions(int world_size) : asked_(static_cast<std::size_t>(world_size), false) {}

  /// `asker` waits for `about` until `deadline`; true when `about` has to be sent a question.
  bool add(Asker asker, int about, Clock::time_point deadline) {
    waiting_.push_back({asker, about, deadline});
    const bool send = !asked_[static_cast<std::size_t>(about)];
    asked_[static_cast<std::size_t>(about)] = true;
    return send;
  }

  /// `about` has answered or never will: those who waited for it.
  std::vector<Asker> settle(int about) {
    asked_[static_cast<std::size_t>(about)] = false;
    std::vector<Asker> askers;
    std::erase_if(waiting_, [&](const Entry& entry) {
      if (entry.about == about) askers.push_back(entry.asker);
      return entry.about == about;
    });
    return askers;
  }

  /// Forgets what nobody waits for any more.
  void expire(Clock::time_point now) {
    std::erase_if(waiting_, [&](const Entry& entry) { return entry.deadline <= now; });
  }

 private:
  struct Entry {
    Asker asker;
    int about;
    Clock::time_point deadline;
  };
  std::vector<bool> asked_;
  std::vector<Entry> waiting_;
};

/// Of the ranks that wait in one call, one asks for all.
class WatchTurns {
 public:
  /// Whether `rank` may ask.
  bool take(int rank, const Question& question, Clock::time_point now) {
    if (question.turn == 0) return true;
    auto& last = last_[static_cast<std::size_t>(question.kind)];
    const auto wanted = std::tuple(question.call, question.turn), given = std::tuple(last.call, last.turn);
    if (wanted < given || (wanted == given && last.rank != rank && now < last.until)) return false;
    const bool is_said_once = question.kind == Question::Kind::report;
    last = {question.call, question.turn, rank, is_said_once ? Clock::time_point::max() : now + Question::kTurn};
    return true;
  }

 private:
  struct Turn {
    std::uint64_t call = 0;
    std::uint32_t turn = 0;
    int rank = -1;
    Clock::time_point until{};
  };
  std::array<Turn, 2> last_;  // of each kind
};

}  // namespace ddp::comm::watch
