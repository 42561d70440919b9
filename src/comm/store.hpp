#pragma once
/// store.hpp: opens the key-value store through which the ranks of a job meet.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "ddp/environment.hpp"

namespace ddp::comm {

/// A store whose keys are this job's, this restart's and this process's next group's alone.
///
/// A file if `file` names one; else TCP, served by rank 0 on the launcher's socket if there is
/// one, else by the launcher's agent if it does so, else by rank 0. A client that comes before its server tries again
/// every few milliseconds. A rank 0 that finds its port taken by a store comes to that one, so that the
/// roll call can say who is there twice. A server lives as long as the process: later groups use it again.
/// Errors: ConfigError where the address cannot be served or another kind of program answers there,
/// TimeoutError where nobody answers.
c10::intrusive_ptr<c10d::Store> open_store(const Environment& environment, const std::string& file,
                                           std::chrono::milliseconds timeout);

/// Whether the store that open_store() has given is known to be of this rank's job; false while nobody has
/// said whose it is. Errors: ConfigError when it is another job's.
bool require_own_job(c10d::Store& store, const Environment& environment);

/// Where the ranks meet, in words: "127.0.0.1:29500".
std::string meeting_place(const Environment& environment, const std::string& file);

}  // namespace ddp::comm
