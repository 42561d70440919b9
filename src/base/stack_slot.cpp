#include "base/stack_slot.hpp"

#include <execinfo.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <iterator>

namespace ddp {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

std::optional<std::uint32_t> StackSlot::take() {
  auto word = word_.load(std::memory_order_relaxed);
  if (phase(word) != idle) return std::nullopt;
  const auto taken = with_phase(word + kPhases, asked);
  if (!word_.compare_exchange_strong(word, taken, std::memory_order_acquire)) return std::nullopt;
  return taken;
}

void StackSlot::answer(std::uint32_t request, std::uintptr_t interrupted) {
  if (phase(request) != asked) return;
  auto expected = request;
  if (!word_.compare_exchange_strong(expected, with_phase(request, writing), std::memory_order_acquire)) return;
  count_ = ::backtrace(frames_.data(), static_cast<int>(frames_.size()));
  interrupted_ = interrupted;
  expected = with_phase(request, writing);
  if (word_.compare_exchange_strong(expected, with_phase(request, written), std::memory_order_release)) {
    ::syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  } else {
    word_.store(with_phase(request, idle), std::memory_order_release);  // abandoned
  }
}

bool StackSlot::wait(std::uint32_t request, Clock::time_point until) {
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

std::vector<std::uintptr_t> StackSlot::frames() const {
  constexpr int own_frames = 3;  // answer(), the handler, and what the kernel lets it return to
  std::vector<std::uintptr_t> all;
  std::ranges::transform(frames_.begin(), frames_.begin() + count_, std::back_inserter(all),
                         [](const void* frame) { return reinterpret_cast<std::uintptr_t>(frame); });
  const auto first = std::ranges::find(all, interrupted_);
  all.erase(all.begin(), first != all.end() ? first : all.begin() + std::min(count_, own_frames));
  return all;
}

void StackSlot::give_back() {
  word_.store(with_phase(word_.load(std::memory_order_relaxed), idle), std::memory_order_release);
}

void StackSlot::sleep_while(std::uint32_t word, Clock::duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec limit{seconds.count(), std::chrono::nanoseconds(time - seconds).count()};
  ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, word, &limit, nullptr, 0);
}

}  // namespace ddp
