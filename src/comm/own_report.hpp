#pragma once
/// own_report.hpp: what this rank says of itself to ranks that wait for it.

#include <cstdint>

#include "comm/flight_recorder.hpp"
#include "comm/rank_report.hpp"

namespace ddp::comm {

/// While others wait in call `number` of the group with this recorder; 0: in a message. Where this rank has not made
/// that call, its training thread is looked at, which takes up to half a second.
RankReport own_report(const FlightRecorder& recorder, std::uint64_t number);

}  // namespace ddp::comm
