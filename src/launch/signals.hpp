#pragma once
/// signals.hpp: the signals that concern the launcher, as events to be read instead of handlers.

#include <array>
#include <csignal>
#include <optional>

#include "start/descriptors.hpp"

namespace ddp::launch {

/// From construction on SIGCHLD and the signals to be passed on wait to be read, and SIGPIPE is ignored.
/// A signal that was ignored when the launcher started (nohup, a shell's background job) stays ignored.
class Signals {
 public:
  static constexpr std::array kPassedOn{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

  Signals();

  /// Readable when next() has something.
  int descriptor() const { return queue_.get(); }
  std::optional<int> next();

  /// In a forked child: the mask and SIGPIPE as the launcher found them, SIGCHLD as by default.
  void restore() const;

 private:
  sigset_t mask_before_;
  struct sigaction pipe_before_;
  Descriptor queue_;
};

}  // namespace ddp::launch
