#pragma once
/// nodes.hpp: how the launchers of a job's nodes act as one.
///
/// The one of node 0 decides: it hears how every rank ended, and says when ranks start, end, start again, and that the
/// job is over. A job of one node is the same without the others.

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "start/outcome.hpp"

namespace ddp::launch {

using Clock = std::chrono::steady_clock;

/// What all launchers must know alike, from the one of node 0.
struct Terms {
  std::string id;        ///< unlike any other job's, unless the user gave it
  std::string log_name;  ///< of the folder for its files; empty: none on node 0
  int world_size = 1;
  int nodes = 1;
  int max_restarts = 0;
  std::uint16_t store_port = 0;
  int first_rank = 0;  ///< of this node
};

/// What this launcher is to do.
struct Command {
  enum class Kind {
    start,    ///< number: the attempt, from 0; text: why there is another one, for nodes but 0
    let_end,  ///< number: 1 where the ranks had their time already; text: why those that still run are to end
    pass_on,  ///< number: the signal
    kill,
    leave,  ///< number: the exit code; text: why, where it is for this launcher alone to say
  };
  Kind kind;
  int number = 0;
  std::string text = {};
};

class Nodes {
 public:
  virtual ~Nodes() = default;

  /// A rank of this node has ended.
  virtual void rank_ended(const start::Outcome& outcome) = 0;
  /// Nothing of this node's ranks is left. Last words by rank.
  virtual void ranks_are_gone(const std::map<int, std::string>& tails) = 0;
  /// This launcher got a signal that all ranks are to get; SIGKILL: the user's second Ctrl-C.
  virtual void signalled(int signal) = 0;

  /// Sees what came from other nodes and what is due.
  virtual void look() = 0;
  virtual std::vector<pollfd> wanted() const = 0;
  virtual std::optional<Clock::time_point> next_look() const = 0;

  /// Waits a moment for the others to have heard the last word.
  virtual void part() = 0;

  std::optional<Command> next_command() {
    if (commands_.empty()) return std::nullopt;
    auto command = std::move(commands_.front());
    commands_.pop_front();
    return command;
  }

 protected:
  std::deque<Command> commands_;
};

}  // namespace ddp::launch
