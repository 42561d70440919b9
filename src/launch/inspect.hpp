#pragma once
/// inspect.hpp: ddprun --inspect, which asks a running job from outside.

#include <sys/types.h>

#include <iosfwd>

namespace ddp::launch {

/// Prints what the ranks of a job do, as the first of them tells that answers: `pid` itself or what it has started.
/// For a rank that cannot answer, because it is stopped, another one of its job does. False where nobody
/// answers within some five seconds; one line on standard error then says why.
bool inspect(pid_t pid, std::ostream& out);

}  // namespace ddp::launch
