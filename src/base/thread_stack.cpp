#include "base/thread_stack.hpp"

#include <execinfo.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <thread>

#include "base/frame_names.hpp"
#include "base/stack_slot.hpp"
#include "base/thread_sample.hpp"

namespace ddp {
namespace {

using Clock = StackSlot::Clock;

constexpr std::size_t kSlots = 8;  // askers at one time

/// A handler knows nothing but what is global. Never destroyed.
constinit std::array<StackSlot, kSlots> slots;
static_assert(sizeof(void*) == 8);

/// From the middle: programs count from SIGRTMIN upwards, debuggers and profilers from SIGRTMAX downwards.
int signal_number() { return SIGRTMIN + 13; }

std::string signal_name() { return "signal " + std::to_string(signal_number()); }

/// 0 where this does not know how the processor's state is written down.
std::uintptr_t interrupted_place([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  return static_cast<std::uintptr_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<std::uintptr_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  return 0;
#endif
}

/// The signal carries the slot in its upper half and the request in the lower one.
void on_signal(int /*number*/, siginfo_t* info, void* context) {
  const int saved = errno;
  if (info->si_code == SI_QUEUE && info->si_pid == ::getpid()) {
    const auto value = reinterpret_cast<std::uintptr_t>(info->si_value.sival_ptr);
    if (value >> 32U < kSlots) {
      slots[value >> 32U].answer(static_cast<std::uint32_t>(value), interrupted_place(context));
    }
  }
  errno = saved;
}

struct sigaction action_now() {
  struct sigaction now{};
  ::sigaction(signal_number(), nullptr, &now);
  return now;
}

bool signal_is_free() {
  const auto now = action_now();
  return (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL;
}

bool signal_is_ours() {
  const auto now = action_now();
  return (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_signal;
}

/// Stays for good: without it a signal that comes late would end the process. Runs on the thread's own stack, since an
/// alternative one may be too small for the unwinder.
void install() {
  if (!signal_is_free()) return;
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(signal_number(), &action, nullptr);
}

/// What speaks against sending the signal now; empty: nothing. Signals that wait would use up the user's limit of them.
std::string obstacle(pid_t thread) {
  const auto sample = sample_thread({::getpid(), thread});
  if (!sample) return {};
  const std::uint64_t bit = 1ULL << static_cast<unsigned>(signal_number() - 1);
  if ((sample->blocked_signals & bit) != 0) return "the thread blocks " + signal_name();
  if ((sample->pending_signals & bit) != 0) return "no answer to an earlier request yet";
  return {};
}

/// A thread that has just answered, still in the handler, blocks the signal for a moment.
std::string lasting_obstacle(pid_t thread, Clock::time_point until) {
  constexpr std::chrono::milliseconds a_moment{20};
  until = std::min(until, Clock::now() + a_moment);
  for (;;) {
    auto reason = obstacle(thread);
    if (reason.empty() || Clock::now() >= until) return reason;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool send(pid_t thread, std::size_t slot, std::uint32_t request) {
  siginfo_t info{};
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_ptr = std::bit_cast<void*>(static_cast<std::uintptr_t>(slot) << 32U | request);
  return ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), thread, signal_number(), &info) == 0;
}

bool has_ended(pid_t thread) { return ::syscall(SYS_tgkill, ::getpid(), thread, 0) != 0 && errno == ESRCH; }

std::string described_silence(pid_t thread, const StackLimits& limits) {
  if (has_ended(thread)) return "the thread has ended";
  return "no answer within " + std::to_string(limits.time.count()) + " ms";
}

/// A return address is behind its call, and the call may be the last of its function.
void step_back_into_calls(std::vector<std::uintptr_t>& frames) {
  for (std::size_t i = 1; i < frames.size(); ++i) --frames[i];
}

/// The innermost frames say what it does, the outermost ones which part of the program does it.
std::vector<std::string> lines_of(std::vector<std::uintptr_t> frames, std::size_t most) {
  step_back_into_calls(frames);
  if (frames.size() <= most) return frame_names(frames);
  const auto inner = static_cast<std::ptrdiff_t>(most - most / 4);
  const auto left_out = frames.size() - most;
  frames.erase(frames.begin() + inner, frames.begin() + inner + static_cast<std::ptrdiff_t>(left_out));
  auto lines = frame_names(frames);
  lines.insert(lines.begin() + inner, "... " + std::to_string(left_out) + " frames ...");
  return lines;
}

ThreadStack ask(pid_t thread, std::size_t index, std::uint32_t request, const StackLimits& limits) {
  auto& slot = slots[index];
  const auto until = Clock::now() + limits.time;
  if (auto reason = lasting_obstacle(thread, until); !reason.empty()) {
    slot.give_back();
    return {{}, std::move(reason)};
  }
  if (!send(thread, index, request)) {
    const auto reason = errno;
    slot.give_back();
    return {{}, reason == ESRCH ? "the thread has ended" : "the signal cannot be sent (too many wait already)"};
  }
  if (!slot.wait(request, until)) return {{}, described_silence(thread, limits)};
  auto frames = slot.frames();
  slot.give_back();
  return {lines_of(std::move(frames), static_cast<std::size_t>(std::max(1, limits.frames))), {}};
}

}  // namespace

void prepare_thread_stacks() {
  static std::once_flag once;
  std::call_once(once, [] {
    void* frame = nullptr;
    ::backtrace(&frame, 1);
    install();
  });
}

ThreadStack stack_of(pid_t thread, const StackLimits& limits) {
  prepare_thread_stacks();
  if (!signal_is_ours()) return {{}, "the program uses " + signal_name() + " itself"};
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (const auto request = slots[i].take()) return ask(thread, i, *request, limits);
  }
  return {{}, "too many requests at once"};
}

}  // namespace ddp
