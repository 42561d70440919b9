#pragma once
/// spawn_words.hpp: what the user is told of a spawned rank that failed.

#include <string>

#include "ddp/spawn.hpp"
#include "start/spawned_ranks.hpp"

namespace ddp::comm {

/// `failed` has failed; `place` is the call of spawn(), as "train.cpp:12".
SpawnError spawn_error(const start::SpawnedRanks::Rank& failed, int world_size, const std::string& place);

}  // namespace ddp::comm
