#pragma once
/// fatal_dump.hpp: the dump of a process that a signal of its own ends.

#include <string_view>

namespace ddp::comm {

/// From now on a fatal signal leaves a dump and one line on standard error, see base/fatal_signals.hpp.
void dump_at_fatal_signals() noexcept;

/// Why this process is about to abort; the first one counts. Threads: any.
void note_last_words(std::string_view text) noexcept;

}  // namespace ddp::comm
