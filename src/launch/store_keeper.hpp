#pragma once
/// store_keeper.hpp: sees to it that somebody serves the store at the job's port.

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "start/child.hpp"

namespace ddp::launch {

/// A rank 0 of this library takes over the listening socket that it was handed, and says so by owning it (fcntl's
/// F_SETOWN, which all holders of a socket share). Any other one, Python's say, calls at the port itself, where nobody
/// answers then: as soon as it does, and not before, a small program is started that serves there, and ends with this.
class StoreKeeper {
 public:
  /// `socket`: listens; forgets its owner. `program`: "ddprun_store". `restore`: as LocalRanks's.
  StoreKeeper(int socket, std::uint16_t port, std::string program, std::function<void()> restore);
  StoreKeeper(const StoreKeeper&) = delete;

  /// `rank_0`: the process that was started as it. Errors: std::runtime_error where the program is missing.
  void look(pid_t rank_0);
  /// Of the program; 0: it does not run.
  pid_t process() const { return pid_; }
  /// Whose events make a look worth while.
  std::vector<pollfd> wanted() const;
  /// When to look again without one: somebody calls and it is not clear yet who will answer.
  std::optional<std::chrono::steady_clock::time_point> next_look() const { return next_look_; }

 private:
  bool is_owned() const;
  bool has_caller() const;
  void serve();

  int socket_;
  std::uint16_t port_;
  std::string program_;
  std::function<void()> restore_;
  bool is_served_ = false;  // by rank 0, or by the program
  std::chrono::milliseconds pause_;
  std::optional<std::chrono::steady_clock::time_point> next_look_;
  Descriptor lifeline_;  // the program ends once nobody holds it
  pid_t pid_ = 0;
  std::optional<start::Child> server_;
};

/// Whether one of the process `pid` and its descendants has a connection to `port`.
bool calls_at(pid_t pid, std::uint16_t port);

}  // namespace ddp::launch
