#pragma once
/// thread_report.hpp: what the program's threads do, and where.

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/thread_stack.hpp"

namespace ddp {

struct ThreadReport {
  pid_t thread = 0;
  std::string name;
  std::string state;  // "sleeps (futex)", as described() has it
  ThreadStack stack;
};

/// Of this process's main thread, then of its others but the library's own, 32 at most. Interrupts each of them, see
/// stack_of(). Takes some 100 ms, and two seconds more at most where threads do not answer.
std::vector<ThreadReport> thread_reports();

}  // namespace ddp
