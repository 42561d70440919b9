#pragma once
/// dial.hpp: connections to and from another machine.

#include <cstdint>
#include <optional>
#include <string>

#include "base/descriptor.hpp"

namespace ddp::launch {

struct Call {
  Descriptor socket;     ///< of none: nobody answered
  std::string why = {};  ///< in words, then
};

/// Tries every address of `host`. `from`: an address of this machine to call from; empty: any.
/// Ends early once `interrupt` is readable.
Call dial(const std::string& host, std::uint16_t port, const std::string& from, int interrupt);

struct Caller {
  Descriptor socket;
  std::string address;
};

/// The next one who waits at a listening socket; nothing where nobody does. Does not wait.
std::optional<Caller> accept_from(int listening);

}  // namespace ddp::launch
