#pragma once
/// dump_thread.hpp: a thread that writes this process's dump when it is asked to, whatever the others are stuck in.

#include <functional>

namespace ddp::comm {

/// Starts the thread, once in a process and again in a child of fork(), which does not inherit it. With `takes_signal`
/// it is asked by SIGUSR2 too, where the program has left that signal at its default.
/// Threads: one at a time. Errors: none; a line in the log says where there can be none.
void start_dump_thread(bool takes_signal) noexcept;

/// The process's thread runs `job` soon, which does not throw. False where there is no such thread.
/// Threads: any.
bool ask_dump_thread(std::function<void()> job);

/// For the process's exit: waits for a dump that is being written, and no other one begins.
void end_dump_thread() noexcept;

}  // namespace ddp::comm
