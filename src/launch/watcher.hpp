#pragma once
/// watcher.hpp: a tiny process that outlives the launcher and ends the ranks' process groups, so that nothing is left
/// behind even when the launcher is killed with SIGKILL.

#include <sys/types.h>

#include "start/descriptors.hpp"

namespace ddp::launch {

/// The watcher waits at the end of a pipe that only the launcher holds. When it closes, for whatever reason, every
/// group that was added and not forgotten gets SIGKILL.
class Watcher {
 public:
  /// Forks it, into a session of its own: neither Ctrl-C nor a kill of the launcher's group reaches it.
  Watcher();
  /// Closes the pipe and waits until the watcher is gone.
  ~Watcher();
  Watcher(const Watcher&) = delete;

  pid_t process() const { return pid_; }

  /// Called by the group's leader itself before it runs the program, so that no moment is unwatched.
  void add(pid_t group);
  /// The group is empty; its number may belong to a stranger soon.
  void forget(pid_t group);

 private:
  Descriptor pipe_;
  pid_t pid_ = -1;
};

}  // namespace ddp::launch
