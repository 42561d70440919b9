#pragma once
/// stop.hpp: all ranks stop after the same step, because one of them was asked to.
///
///     ddp::stop_on_signals();
///     for (...) {
///       loss.backward();
///       optimizer.step();
///       if (ddp::stop_requested()) break;  // on all ranks after the same step; a checkpoint may follow
///     }
///
/// A rank's wish travels with the gradients of its next step, so that agreeing costs no message.

#include <csignal>
#include <initializer_list>

namespace ddp {

class ProcessGroup;

/// From now on each of these signals is a wish to stop, instead of this process's end: a scheduler's SIGTERM, Ctrl-C,
/// a SIGUSR1 some minutes before the time is up. A handler that the program had before is still called; one that it
/// installs later wins. A SIGINT more than a second after the first has the effect that it had before, so that a
/// program that hangs can be ended. What is ignored stays so, as SIGINT in the background jobs of a script. Children
/// that are forked later see the effects from before.
///
/// Threads: any. Errors: std::invalid_argument for a signal that cannot be caught or that tells of a fault.
void stop_on_signals(std::initializer_list<int> signals = {SIGTERM, SIGINT, SIGUSR1});

/// The same wish from the program: this rank's time is up, its disk is full. For good; no other rank need say so.
/// Threads: any; safe in a signal's handler.
void request_stop() noexcept;

/// All ranks know that at least one of them wants to stop: learnt in the last backward() that was reduced by a
/// DistributedDataParallel over all ranks, so the same answer on each rank up to the next one. Once true it stays true.
/// Rank 0 says in the log whose wish it is. A process without other ranks goes by its own wish at once; so does one
/// that has no group.
///
/// Backwards under no_sync(), and replays of a recorded graph, tell nothing. Where several threads run backwards, ranks
/// may see it between different ones of them: ask in one thread, after its own backward, with a group.
///
/// Threads: any.
bool stop_requested();

/// Collective. Asks the group's ranks, in one small all-reduce: for loops whose steps are not averaged by a
/// DistributedDataParallel over all ranks, as in an evaluation. Of a group of some ranks: one of these wants to stop.
/// Errors: as ProcessGroup::all_reduce().
bool stop_requested(ProcessGroup& group);

}  // namespace ddp
