#pragma once
/// own_address.hpp: at which address the other ranks reach this host.

#include <string>

#include "ddp/environment.hpp"

namespace ddp::comm {

/// The loopback where all ranks share this host, else this host's address on the way to the master.
/// Empty where only a loopback address or none was found: the address of this host's name then.
std::string own_address(const Environment& environment);

/// Whether some ranks are on other hosts, as far as is known: the launcher's numbers say so, or MASTER_ADDR is
/// no address of this host. False where all meet at a loopback.
bool peers_are_remote(const Environment& environment);

/// The same, or this host's name: never empty.
std::string reachable_address(const Environment& environment);

}  // namespace ddp::comm
