#pragma once
/// diagnosis.hpp: what a rank knows of itself when something is wrong with the job.
///
/// Without being called, each rank writes the same file at a time-out, on SIGUSR2 and at a fatal signal: docs/dumps.md.

#include <string>

namespace ddp {

/// Writes this rank's last 2,048 calls in each of its groups, its step and phase, and its threads with their stacks to
/// a JSON file, in place of a former one, and returns its path. Takes a tenth of a second, in which no other rank is
/// asked anything. `path` empty: ddp_rank<rank>_<host>_pid<process>.json in the folder DDP_DUMP_DIR, else TMPDIR, else
/// /tmp.
///
/// Interrupts each of the program's threads with a signal: system calls that Linux never restarts (poll, nanosleep)
/// return EINTR in them.
/// Threads: safe. Errors: ddp::Error where the file cannot be written, std::logic_error before the first process group.
std::string dump_records(const std::string& path = {});

}  // namespace ddp
