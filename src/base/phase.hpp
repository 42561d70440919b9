#pragma once
/// base/phase.hpp: what ddp/phase.hpp has marked, for whoever looks.

#include <chrono>
#include <cstdint>

#include "ddp/phase.hpp"

namespace ddp {

/// "" outside of all phases.
const char* current_phase() noexcept;
/// When it began; the clock's zero outside of all phases.
std::chrono::steady_clock::time_point phase_began() noexcept;
/// What ddp::step() was told; -1: never called.
std::int64_t marked_step() noexcept;

}  // namespace ddp
