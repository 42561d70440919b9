#pragma once
/// outcome.hpp: how the ranks ended, which of them failed first, and what the user is told about it.

#include <chrono>
#include <string>
#include <vector>

namespace ddp::launch {

/// How one rank ended.
struct Outcome {
  int rank = 0;
  int status = 0;                      ///< as from waitpid()
  int sent = 0;                        ///< the last signal that ddprun had sent it, 0 for none
  int round = 0;                       ///< ranks with the same number were found ended together
  std::chrono::milliseconds after{0};  ///< since the start

  bool failed() const { return status != 0; }
  /// 128 + n for signal n.
  int exit_code() const;
};

/// The one that counts: it failed on its own before ddprun interfered, and first; where several were found ended
/// together, one that a signal ended, then one with a code of its own (1 is what an echo gives too). Null: none failed.
const Outcome* first_failure(const std::vector<Outcome>& outcomes);

/// The lines for the user; none when no rank failed.
std::vector<std::string> summary(const std::vector<Outcome>& outcomes);

}  // namespace ddp::launch
