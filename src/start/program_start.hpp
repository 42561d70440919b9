#pragma once
/// program_start.hpp: how this program was started, to start it once more in the same way.

#include <csignal>
#include <string>
#include <vector>

namespace ddp::start {

/// As it was before main(), whatever the program has changed since.
struct ProgramStart {
  std::vector<std::string> arguments;
  std::string folder;  ///< the working directory; empty where it has no path
  sigset_t blocked{};
  sigset_t ignored{};
};
const ProgramStart& program_start();

/// A path of the very file that this process runs, also when another has taken its name or nothing has.
std::string own_program();

/// Gives a new process, which has all signals blocked, this folder and the signals as they were. Between fork and exec
/// of a process with threads: calls nothing but what is safe in a signal handler.
void restore(const ProgramStart& start);

}  // namespace ddp::start
