#pragma once
/// quiet.hpp: keeps LibTorch's warnings about what is no trouble out of a job's output.

namespace ddp::comm {

/// While one lives, LibTorch logs no warnings (errors it does). Its store's client warns where an address
/// has no name, as on a host without a name server, and prints a stack trace where the store has gone.
/// Does nothing where the user has set TORCH_CPP_LOG_LEVEL.
/// Threads: any; warnings of other threads are lost meanwhile: for a start-up, not for a training.
class Quiet {
 public:
  Quiet();
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

}  // namespace ddp::comm
