#pragma once
/// core_share.hpp: whether the ranks of a host have to take turns.

#include "ddp/process_group.hpp"

namespace ddp {

/// Collective. False if this host's ranks of the group may use fewer cores, by their affinity masks together, than
/// they are.
bool has_core_for_each_rank(ProcessGroup& group);

}  // namespace ddp
