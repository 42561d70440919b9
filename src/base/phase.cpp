#include "base/phase.hpp"

#include <atomic>

#include "base/thread_number.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<std::int64_t> step_of_program{-1};
std::atomic<const char*> phase_name{""};
std::atomic<std::int64_t> phase_since{0};
std::atomic<pid_t> thread_of_phase{0};
std::atomic<bool> is_data_used_up{false};

}  // namespace

void step(std::int64_t number) noexcept { step_of_program.store(number, std::memory_order_relaxed); }

Phase::Phase(const char* name) noexcept : outer_(phase_name), outer_since_(phase_since) {
  phase_since = Clock::now().time_since_epoch().count();
  phase_name = name != nullptr ? name : "";
  thread_of_phase.store(own_thread_number(), std::memory_order_relaxed);
}

Phase::~Phase() {
  phase_since = outer_since_;
  phase_name = outer_;
}

const char* current_phase() noexcept { return phase_name.load(std::memory_order_relaxed); }

Clock::time_point phase_began() noexcept { return Clock::time_point(Clock::duration(phase_since.load())); }

pid_t phase_thread() noexcept { return thread_of_phase.load(std::memory_order_relaxed); }

void mark_data_used_up(bool is_used_up) noexcept { is_data_used_up.store(is_used_up, std::memory_order_relaxed); }

bool data_used_up() noexcept { return is_data_used_up.load(std::memory_order_relaxed); }

std::int64_t marked_step() noexcept { return step_of_program.load(std::memory_order_relaxed); }

}  // namespace ddp
