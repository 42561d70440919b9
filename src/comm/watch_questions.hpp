#pragma once
/// watch_questions.hpp: who has asked everybody, who has not answered yet, and whose turn it is to ask.

#include <array>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/peer_watch.hpp"
#include "comm/watch_socket.hpp"

namespace ddp::comm::watch {

/// A rank is sent one question about a call at a time, however many wait for its answer: so nothing piles up for a rank
/// that is stopped.
class WatchQuestions {
 public:
  struct Asker {
    int rank;
    std::uint32_t id;
  };

  /// `asker` waits until `deadline` for what `about` says of `call`; true when `about` has to be sent the question.
  bool add(Asker asker, int about, std::uint64_t call, Clock::time_point deadline) {
    waiting_.push_back({asker, about, call, deadline});
    return asked_.insert({about, call}).second;
  }

  /// `about` has answered: those who waited for it.
  std::vector<Asker> settle(int about, std::uint64_t call) {
    asked_.erase({about, call});
    return take([&](const Entry& entry) { return entry.about == about && entry.call == call; });
  }
  /// It never will answer anything.
  std::vector<Asker> settle(int about) {
    std::erase_if(asked_, [&](const auto& asked) { return asked.first == about; });
    return take([&](const Entry& entry) { return entry.about == about; });
  }

  /// Forgets what nobody waits for any more.
  void expire(Clock::time_point now) {
    std::erase_if(waiting_, [&](const Entry& entry) { return entry.deadline <= now; });
  }

 private:
  struct Entry {
    Asker asker;
    int about;
    std::uint64_t call;
    Clock::time_point deadline;
  };
  template <class Which>
  std::vector<Asker> take(Which which) {
    std::vector<Asker> askers;
    std::erase_if(waiting_, [&](const Entry& entry) {
      const bool is_it = which(entry);
      if (is_it) askers.push_back(entry.asker);
      return is_it;
    });
    return askers;
  }

  std::set<std::pair<int, std::uint64_t>> asked_;  // and not answered
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
