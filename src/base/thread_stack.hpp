#pragma once
/// thread_stack.hpp: where a thread of this process is.
///
///     for (const auto& line : stack_of(thread).frames) ...  // "train(Batch&) in program(+0x1234)", innermost first

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace ddp {

struct ThreadStack {
  std::vector<std::string> frames;  // as frame_names() has them; a deep stack's middle is one line with its length
  std::string missing;              // why there are none: "no answer within 200 ms", "the thread has ended", ...
};

struct StackLimits {
  int frames = 40;
  std::chrono::milliseconds time{200};  // for the thread's answer
};

/// Interrupts the thread with a real-time signal, SIGRTMIN + 13, whose handler writes down the stack. A program that
/// handles this signal itself keeps it, and gets no stacks. A thread that blocks it, that the kernel keeps from running
/// or that waits uninterruptibly gives none either.
///
/// The thread's system calls are restarted but for those that Linux never restarts, see signal(7): poll, select,
/// epoll_wait, nanosleep, pause, sigtimedwait, semop, sem_timedwait, and calls on a socket with a time-out return
/// EINTR. A read or write that has moved some bytes returns with these. (std::this_thread::sleep_for and waits of
/// mutexes and condition variables go on by themselves.)
///
/// Threads: any, several at once. Errors: walking trusts the compiler's unwind tables; in code whose tables are wrong,
/// the thread may crash. So ask where a thread hangs, not as a habit.
ThreadStack stack_of(pid_t thread, const StackLimits& limits = {});

/// Does what stack_of() would do at its first call: installs the handler and loads the unwinder, which takes the
/// loader's lock and memory. To be called before a thread may hang with one of these.
void prepare_thread_stacks();

}  // namespace ddp
