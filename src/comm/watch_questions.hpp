#pragma once
/// watch_questions.hpp: who has asked for everybody's status, and who has not answered yet.

#include <algorithm>
#include <cstdint>
#include <vector>

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

}  // namespace ddp::comm::watch
