#pragma once
/// stop_signals.hpp: signals that ask a process to stop at a place of its choice.

#include <initializer_list>

namespace ddp {

/// From now on each of these signals makes this process want to stop (see stop_wish.hpp), and a handler that was there
/// before runs after that. The second SIGINT also has the effect that it would have without this, so that a program
/// that hangs can be ended. A signal that is ignored stays so. In a child that is forked later they have the effect
/// that they had before, unless it calls this itself.
///
/// The first call counts for each signal; a handler that the program installs later wins.
/// Threads: any. Errors: std::invalid_argument, with nothing changed, for a signal that cannot be caught, or that tells
/// of a fault.
void want_to_stop_at(std::initializer_list<int> signals);

}  // namespace ddp
