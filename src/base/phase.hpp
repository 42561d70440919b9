#pragma once
/// base/phase.hpp: what ddp/phase.hpp has marked, for whoever looks.

#include <sys/types.h>

#include <chrono>
#include <cstdint>

#include "ddp/phase.hpp"

namespace ddp {

/// "" outside of all phases.
const char* current_phase() noexcept;
/// When it began; the clock's zero outside of all phases.
std::chrono::steady_clock::time_point phase_began() noexcept;
/// The thread that has begun the latest phase; 0: there was none.
pid_t phase_thread() noexcept;
/// Whether a loop over data has ended for want of more, and none has gone on since.
void mark_data_used_up(bool is_used_up) noexcept;
bool data_used_up() noexcept;
/// What ddp::step() was told; -1: never called.
std::int64_t marked_step() noexcept;

}  // namespace ddp
