#pragma once
/// meeting.hpp: how the launchers of a job's nodes find one another.

#include <memory>

#include "launch/nodes.hpp"
#include "launch/options.hpp"
#include "launch/signals.hpp"

namespace ddp::launch {

struct Meeting {
  Terms terms;
  std::unique_ptr<Nodes> nodes;
};

/// A signal came before all nodes were there.
struct Interrupted {
  int signal;
};

/// Node 0, also of a job of one node: listens at the master's port where there are others, and waits for them.
/// `store_port`: of the socket that rank 0 is going to be handed.
/// Errors: ConfigError where the port cannot be had, TimeoutError where nodes are missing; throws Interrupted.
Meeting lead_meeting(const Options& options, std::uint16_t store_port, Signals& signals);

/// The others: come to node 0, as often as it takes.
/// Errors: ConfigError where node 0 refuses this one, TimeoutError where it does not answer; throws Interrupted.
Meeting join_meeting(const Options& options, Signals& signals);

/// "host:port", "[address]:port".
std::string place(const std::string& host, std::uint16_t port);

/// This machine's name.
std::string host_name();

}  // namespace ddp::launch
