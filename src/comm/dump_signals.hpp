#pragma once
/// dump_signals.hpp: whether this process leaves dumps at signals.

namespace ddp::comm {

/// Unless DDP_DUMP_SIGNALS is 0. Errors: ConfigError where it is no switch.
bool dump_signals_are_wanted();

}  // namespace ddp::comm
