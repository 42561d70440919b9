#pragma once
/// dump_author.hpp: who this process is in its dumps, and where they go.

#include <optional>
#include <string>

#include "base/pinned_slot.hpp"
#include "comm/dump_content.hpp"

namespace ddp::comm {

/// The folder is DDP_DUMP_DIR, else TMPDIR, else /tmp; the file ddp_rank<rank>_<host>_pid<process>.json.
DumpAuthor author_of(Origin origin);

/// From a process's first group on, the newest group's. A child of fork() has none until it makes a group itself.
/// Threads: all members are safe, read() also in a signal's handler.
class CurrentAuthor {
 public:
  static void become(Origin origin);
  static std::optional<DumpAuthor> copy();
  /// Runs `look` on it, if there is one.
  template <class Look>
  static void read(Look look) {
    slot().read([&](const DumpAuthor& author) {
      if (is_here(author)) look(author);
    });
  }

 private:
  static PinnedSlot<const DumpAuthor>& slot() noexcept;
  static bool is_here(const DumpAuthor& author) noexcept;
};

}  // namespace ddp::comm
