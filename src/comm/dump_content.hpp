#pragma once
/// dump_content.hpp: what a dump says of this process and its groups, as one JSON object. Its fields: docs/dumps.md.

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.hpp"
#include "base/thread_report.hpp"
#include "ddp/error.hpp"

namespace ddp::comm {

struct DumpAuthor {
  Origin origin;
  pid_t process = 0;
  std::string host;
  std::string path;  ///< of its dumps
};

struct DumpCause {
  std::string_view why;         ///< "timeout", "mismatch", "call", or a signal's name
  std::string_view error = {};  ///< its text; empty where there is none
};

/// Of all groups in the table. Takes no memory: safe in a signal's handler, where `threads` is null.
void write_dump(JsonWriter& json, const DumpAuthor& author, const DumpCause& cause,
                const std::vector<ThreadReport>* threads) noexcept;

}  // namespace ddp::comm
