#pragma once
/// signal_name.hpp: a signal's name for texts.

#include <string>

namespace ddp::start {

/// "SIGSEGV", or "signal 64" where it has no name.
std::string signal_name(int signal);

}  // namespace ddp::start
