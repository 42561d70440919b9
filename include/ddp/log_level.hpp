#pragma once
/// log_level.hpp: how urgent a line is, which part of the library speaks, and for whom.

#include <string>

namespace ddp::log {

enum class Level { debug, info, warn, error };

/// Parts of the library that speak only when DDP_LOG_SUBSYS names them (or "all").
enum class Subsystem { init, coll, bucket };

/// Who this process is.
struct Identity {
  int rank = 0;
  int world_size = 1;
  std::string host = {};  ///< shown when not empty: set where the job spans several hosts
};

}  // namespace ddp::log
