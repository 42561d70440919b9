#pragma once
/// interfaces.hpp: over which of this host's addresses the ranks' data goes: GLOO_SOCKET_IFNAME.

#include <string>
#include <string_view>
#include <vector>

namespace ddp::comm {

/// An address of an interface that is up.
struct InterfaceAddress {
  std::string interface = {};  ///< "eth0"
  std::string address = {};    ///< numeric; empty for an interface that has none
  bool is_v6 = false;
  bool is_loopback = false;
};

/// This host's, in the kernel's order, without addresses that are good for one link only (fe80::).
/// Errors: std::system_error
std::vector<InterfaceAddress> host_interfaces();

/// What decides beside the variable.
struct InterfaceChoice {
  std::string usual = {};     ///< the address that is used without the variable; empty if there is none
  bool peers_remote = false;  ///< ranks are on other hosts, as far as is known: no loopback then
};

/// Reads a value of GLOO_SOCKET_IFNAME, which is not empty: names and addresses, `eth0,10.0.0.7`, one
/// address each (IPv4 where an interface has it); or the beginnings of names not to be used,
/// `^docker,veth`: the usual address where it remains, else the first other one.
/// Errors: ddp::ConfigError naming the interfaces that there are.
std::vector<InterfaceAddress> chosen_interfaces(std::string_view value, const std::vector<InterfaceAddress>& all,
                                                const InterfaceChoice& choice);

}  // namespace ddp::comm
