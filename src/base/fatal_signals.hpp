#pragma once
/// fatal_signals.hpp: a last word of a process that ends by a fault of its own.

#include <csignal>

namespace ddp {

/// What runs in the handler: nothing but what signal-safety(7) allows, in little stack.
using FatalReport = void (*)(const siginfo_t& signal);

/// From now on `report` runs once where SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT comes; then whatever would have
/// happened without it does: the handler that was there before, or the default, with the same exit signal and a core
/// dump from the same place. A handler that the program installs later wins, and an ignored signal stays ignored. A
/// fault inside the report ends the process by the first signal. On a thread with an alternative stack it runs on that.
///
/// The first call counts. Threads: any.
void report_fatal_signals(FatalReport report) noexcept;

}  // namespace ddp
