#pragma once
/// run.hpp: the body of main().

#include <functional>

namespace ddp {

/// Runs `body` and returns the exit code: 0, or 1 after an exception, whose text is printed, stands in
/// the log's file, if there is one, and reaches the other ranks; 76 where it was a PeerLostError, so that a launcher
/// looks for the cause at another rank, and 75 where it was a TimeoutError or CallMismatchError of ranks that had met.
/// Leaves all groups in order in each case.
int run(const std::function<void()>& body);

}  // namespace ddp
