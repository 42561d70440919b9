#pragma once
/// log_speaker.hpp: who this process is, what it shows and which file it writes.

#include "base/log_settings.hpp"
#include "base/log_sink.hpp"

namespace ddp::log {

/// Read at the first use, which also reports what was ignored.
const Settings& settings();

/// Where a line for `speaking_rank` goes, whatever its level. Threads: safe.
Places places_for(int speaking_rank);

}  // namespace ddp::log
