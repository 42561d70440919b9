#pragma once
/// inspection_client.hpp: asks another process's InspectionServer.

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/process_key.hpp"

namespace ddp {

struct InspectionReply {
  enum class Kind {
    answer,     ///< `text` is what it tells
    other_job,  ///< the process that was asked about is no rank of its job
    nobody,     ///< no server of this user's
    refused,    ///< `text` may say why
    silent,     ///< within the limit; its process is stopped, perhaps
  };
  Kind kind = Kind::nobody;
  std::string text = {};
};

struct InspectionQuestion {
  ProcessKey whom;
  uid_t owner = 0;                       ///< of the process `whom`: nobody else is believed
  std::optional<ProcessKey> about = {};  ///< only of a job of which this one is a rank
  std::chrono::milliseconds limit{2000};
};

/// Errors: std::system_error where this process can have no socket.
InspectionReply ask_process(const InspectionQuestion& question);

/// The processes that have an InspectionServer, of all users, in this network namespace.
std::vector<ProcessKey> inspected_processes();

}  // namespace ddp
