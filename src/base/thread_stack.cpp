#include "base/thread_stack.hpp"

#include <execinfo.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <thread>

#include "base/frame_names.hpp"
#include "base/thread_sample.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kDeepest = 256;  // 2 KB each; whoever recurses deeper is shown without the outermost frames
constexpr std::size_t kSlots = 8;      // askers at one time
constexpr int kOwnFrames = 2;          // the handler and what the kernel returns to from it

/// A request and its answer. An answer may come long after the asker has gone: the word holds a number beside the
/// phase, and who does not find the number that the signal carries leaves the slot alone.
class Slot {
 public:
  /// The word to send with the signal; nothing where the slot is in use.
  std::optional<std::uint32_t> take() {
    auto word = word_.load(std::memory_order_relaxed);
    if (phase(word) != idle) return std::nullopt;
    const auto taken = with_phase(word + kPhases, asked);
    if (!word_.compare_exchange_strong(word, taken, std::memory_order_acquire)) return std::nullopt;
    return taken;
  }

  /// In the handler: neither memory nor locks.
  void answer(std::uint32_t request, const void* context) {
    auto expected = request;
    if (!word_.compare_exchange_strong(expected, with_phase(request, writing), std::memory_order_acquire)) return;
    count_ = ::backtrace(frames_.data(), static_cast<int>(frames_.size()));
    interrupted_ = program_counter(context);
    expected = with_phase(request, writing);
    if (word_.compare_exchange_strong(expected, with_phase(request, written), std::memory_order_release)) {
      ::syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    } else {
      word_.store(with_phase(request, idle), std::memory_order_release);  // abandoned
    }
  }

  /// Whether the answer has come. Where it has not, it is not waited for any more.
  bool wait(std::uint32_t request, Clock::time_point until) {
    for (;;) {
      auto word = word_.load(std::memory_order_acquire);
      if (phase(word) == written) return true;
      const auto left = until - Clock::now();
      if (left > Clock::duration::zero()) {
        sleep_while(word, left);
      } else if (word_.compare_exchange_strong(word, with_phase(request, phase(word) == asked ? idle : abandoned),
                                               std::memory_order_acq_rel)) {
        return false;
      }
    }
  }

  /// Once the answer has come: innermost first.
  std::vector<std::uintptr_t> frames() const {
    std::vector<std::uintptr_t> all;
    for (int i = 0; i < count_; ++i)
      all.push_back(reinterpret_cast<std::uintptr_t>(frames_[static_cast<std::size_t>(i)]));
    const auto own = std::ranges::find(all, interrupted_);
    all.erase(all.begin(), own != all.end() ? own : all.begin() + std::min(count_, kOwnFrames));
    return all;
  }

  void give_back() { word_.store(with_phase(word_.load(std::memory_order_relaxed), idle), std::memory_order_release); }

 private:
  enum Phase : std::uint32_t { idle, asked, writing, written, abandoned };
  static constexpr std::uint32_t kPhases = 8;

  static Phase phase(std::uint32_t word) { return static_cast<Phase>(word % kPhases); }
  static std::uint32_t with_phase(std::uint32_t word, Phase phase) { return word / kPhases * kPhases + phase; }

  static std::uintptr_t program_counter([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
    return static_cast<std::uintptr_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return static_cast<std::uintptr_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
    return 0;
#endif
  }

  void sleep_while(std::uint32_t word, Clock::duration time) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
    const timespec limit{seconds.count(), std::chrono::nanoseconds(time - seconds).count()};
    ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, word, &limit, nullptr, 0);
  }

  std::atomic<std::uint32_t> word_{idle};
  int count_ = 0;
  std::uintptr_t interrupted_ = 0;
  std::array<void*, kDeepest> frames_{};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(void*) == 8);

/// A handler knows nothing but what is global. Never destroyed.
constinit std::array<Slot, kSlots> slots;

/// From the middle: programs count from SIGRTMIN upwards, debuggers and profilers from SIGRTMAX downwards.
int signal_number() { return SIGRTMIN + 13; }

std::string signal_name() { return "signal " + std::to_string(signal_number()); }

/// The signal carries the slot in its upper half and the request in the lower one.
void on_signal(int /*number*/, siginfo_t* info, void* context) {
  const int saved = errno;
  if (info->si_code == SI_QUEUE && info->si_pid == ::getpid()) {
    const auto value = reinterpret_cast<std::uintptr_t>(info->si_value.sival_ptr);
    if (value >> 32U < kSlots) slots[value >> 32U].answer(static_cast<std::uint32_t>(value), context);
  }
  errno = saved;
}

bool handler_is(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction now{};
  ::sigaction(signal_number(), nullptr, &now);
  if (handler != nullptr) return (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == handler;
  return (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL;
}

/// Stays for good: without it a signal that comes late would end the process. Runs on the thread's own stack, since an
/// alternative one may be too small for the unwinder.
void install() {
  if (!handler_is(nullptr)) return;
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
  info.si_value.sival_ptr = reinterpret_cast<void*>(static_cast<std::uintptr_t>(slot) << 32U | request);
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
  if (!handler_is(on_signal)) return {{}, "the program uses " + signal_name() + " itself"};
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (const auto request = slots[i].take()) return ask(thread, i, *request, limits);
  }
  return {{}, "too many requests at once"};
}

}  // namespace ddp
