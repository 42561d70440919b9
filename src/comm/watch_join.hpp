#pragma once
/// watch_join.hpp: how a link gets into its hub.

#include "comm/peer_watch.hpp"
#include "comm/watch_frame.hpp"
#include "comm/watch_socket.hpp"

namespace ddp::comm::watch {

/// Connects, introduces this rank and waits for the welcome; what follows it is left in `frames`.
/// Errors: ddp::ConfigError
Descriptor join_hub(const WatchLink::Options& options, FrameReader& frames);

}  // namespace ddp::comm::watch
