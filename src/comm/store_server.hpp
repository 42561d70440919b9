#pragma once
/// store_server.hpp: a store for ranks of which none serves one, such as Python's.

namespace ddp::comm {

/// Serves a TCPStore on the socket `listening`, which is the store's from here on, until `lifeline` is at its end: a
/// pipe that nobody can write to any more, or a file that has been read. What comes through it meanwhile is dropped.
/// Errors: ConfigError where the descriptor is no socket that listens, or nothing can be served on it.
void serve_store(int listening, int lifeline);

}  // namespace ddp::comm
