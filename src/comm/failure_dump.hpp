#pragma once
/// failure_dump.hpp: the dumps of all ranks when a call times out or can never end.

#include <string>
#include <string_view>

#include "comm/health.hpp"

namespace ddp::comm {

/// Has this process's dump written by its dump thread, for a time-out here or on another rank and for ranks that wait
/// in calls that never meet: once, however many of its threads and groups meet the failure. Returns at once.
void hear_of_failure(const Breakage& breakage, Origin origin, std::string_view part) noexcept;

/// The same, and waits for the file, some seconds at most. "\n  this rank's calls are in FILE", for the
/// error's text; empty where there is none.
std::string dump_at_failure(const Breakage& breakage, Origin origin, std::string_view part) noexcept;

}  // namespace ddp::comm
