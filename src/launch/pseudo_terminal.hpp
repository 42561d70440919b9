#pragma once
/// pseudo_terminal.hpp: a terminal for a rank whose output is shown on one.

#include "base/descriptor.hpp"

namespace ddp::launch {

/// What is written to `to` comes out of `from`.
struct Channel {
  Descriptor from, to;
};

/// As wide as the one behind `stream`, and nothing of what goes through is changed.
/// Errors: std::system_error.
Channel make_pseudo_terminal(int stream);

}  // namespace ddp::launch
