#pragma once
/// summary.hpp: what a training runs on, in a few lines at its start.

#include <string>
#include <vector>

#include "comm/roll_call.hpp"

namespace ddp::comm {

/// Logs world size, ranks a host, host names, backend, library versions and threads a rank, on rank 0.
void log_summary(const std::vector<Arrival>& arrivals, const std::string& backend);

}  // namespace ddp::comm
