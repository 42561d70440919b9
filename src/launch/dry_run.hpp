#pragma once
/// dry_run.hpp: ddprun --dry-run.

#include <iosfwd>

#include "launch/launcher.hpp"

namespace ddp::launch {

/// What would be started on this node, as a shell would take it, one rank after the other.
void show(const RankPlan& plan, std::ostream& out);

}  // namespace ddp::launch
