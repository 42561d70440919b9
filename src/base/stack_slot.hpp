#pragma once
/// stack_slot.hpp: how a thread's signal handler hands its stack to the thread that has asked for it.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace ddp {

/// A request and its answer, in the order take(), answer() by the other thread, wait(), frames(), give_back(). An
/// answer may come long after the asker has gone: the word holds a number beside the phase, and who does not find the
/// number that came with the signal leaves the slot alone.
///
/// Threads: any. Whoever gets the slot from take() has it until give_back(), or until wait() says no.
/// Lifetime: outlives every answer; so has no other home than the program's own.
class StackSlot {
 public:
  using Clock = std::chrono::steady_clock;

  /// The request's number, to be sent with the signal; nothing where the slot is in use.
  std::optional<std::uint32_t> take();
  /// In the handler, which is safe there: neither memory nor locks. `interrupted`: where the thread was.
  void answer(std::uint32_t request, std::uintptr_t interrupted);
  /// Whether the answer has come. Where it has not, it is not waited for any more.
  bool wait(std::uint32_t request, Clock::time_point until);
  /// Innermost first, from the interrupted place on.
  std::vector<std::uintptr_t> frames() const;
  void give_back();

 private:
  enum Phase : std::uint32_t { idle, asked, writing, written, abandoned };
  static constexpr std::uint32_t kPhases = 8;
  static constexpr std::size_t kDeepest = 256;  // 2 KB; who recurses deeper is shown without the outermost frames

  static Phase phase(std::uint32_t word) { return static_cast<Phase>(word % kPhases); }
  static std::uint32_t with_phase(std::uint32_t word, Phase phase) { return word / kPhases * kPhases + phase; }
  void sleep_while(std::uint32_t word, Clock::duration time);

  std::atomic<std::uint32_t> word_{idle};
  int count_ = 0;
  std::uintptr_t interrupted_ = 0;
  std::array<void*, kDeepest> frames_{};
};

}  // namespace ddp
