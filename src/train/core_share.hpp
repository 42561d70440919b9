#pragma once
/// core_share.hpp: whether the ranks of a host have to take turns.

#include "ddp/process_group.hpp"

namespace ddp {

/// Collective. False if this host's ranks of the group may use fewer cores, by their affinity masks together, than
/// `cores_a_rank` for each.
bool has_cores_for_each_rank(ProcessGroup& group, int cores_a_rank);

}  // namespace ddp
