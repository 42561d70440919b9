#pragma once
/// failure_dump.hpp: the dumps of all ranks when a call times out or can never end.

#include <string>
#include <string_view>

#include "comm/health.hpp"

namespace ddp::comm {

/// Of a time-out, here or on another rank, and of ranks that wait in calls that never meet: writes this process's dump,
/// once however many of its threads and groups meet the failure. Waits for one that is being written.
/// "; this rank's calls are in FILE", for the end of the error's text; empty where there is none.
std::string dump_at_failure(const Breakage& breakage, Origin origin, std::string_view part) noexcept;

}  // namespace ddp::comm
