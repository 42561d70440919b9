#pragma once
/// flight_dump.hpp: one file with what this rank has called, and where its threads are.

#include <optional>
#include <string>

#include "base/json_writer.hpp"
#include "base/replaced_file.hpp"
#include "comm/dump_author.hpp"
#include "comm/dump_content.hpp"

namespace ddp::comm {

/// What a dump needs of memory, for those who have little stack.
struct DumpRoom {
  std::optional<ReplacedFile> file;
  std::optional<JsonWriter> json;
};

/// Writes the file, in place of a former one. Safe in a signal's handler, where `threads` is null.
/// Errors: an errno; 0: none.
int save_dump(const char* path, const DumpAuthor& author, const DumpCause& cause,
              const std::vector<ThreadReport>* threads, DumpRoom& room) noexcept;

/// The same with threads and stacks. Takes a tenth of a second, or up to some three. `path` empty: the author's.
/// Errors: ddp::Error of `part`.
std::string dump_with_threads(const DumpAuthor& author, const DumpCause& cause, std::string_view part,
                              const std::string& path = {});

/// The file's path; where it cannot be written an empty text, and a line in the log says why.
std::string dump_or_warn(const DumpCause& cause) noexcept;

}  // namespace ddp::comm
