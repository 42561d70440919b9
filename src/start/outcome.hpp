#pragma once
/// outcome.hpp: how the ranks ended, and which of them failed first.

#include <chrono>
#include <string>
#include <vector>

namespace ddp::start {

/// How one rank ended.
struct Outcome {
  int rank = 0;
  int status = 0;                      ///< as from waitpid()
  int sent = 0;                        ///< the last signal that ddprun had sent it, 0 for none
  std::chrono::milliseconds after{0};  ///< since the start
  std::string host = {};               ///< where it ran; empty: nobody asks

  bool failed() const { return status != 0; }
  /// 128 + n for signal n.
  int exit_code() const;
};

/// The one that counts, of `outcomes` in order of time: the first that failed before ddprun interfered and that does
/// not say itself that it only lost a peer (kLostPeerExitCode). A rank that dies may be found dead a moment after the
/// peers that noticed it, so that of several that failed within 100 ms one counts that a signal ended, then one with
/// an exit code of its own; 1 and SIGABRT, an exception's, may be echoes. Null: none failed.
const Outcome* first_failure(const std::vector<Outcome>& outcomes);

/// The signal that ddprun had sent has ended it.
bool ended_by_launcher(const Outcome& outcome);
/// It says itself that it only lost a peer.
bool only_lost_a_peer(const Outcome& outcome);
/// It says itself that a call did not end.
bool has_stalled(const Outcome& outcome);
/// In words: "exit code 3", "killed by SIGSEGV (signal 11), core dumped".
std::string how(const Outcome& outcome);

}  // namespace ddp::start
