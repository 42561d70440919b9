#pragma once
/// own_network.hpp: a network of a process's own. Needs the right to make network namespaces. Knows no torch.

#include <sched.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace ddp::testing {

inline void shell(const std::string& commands) {
  if (std::system(("set -e; " + commands).c_str()) != 0) throw std::runtime_error("failed: " + commands);
}

inline void enter_new_network() {
  if (::unshare(CLONE_NEWNET) != 0) throw std::runtime_error("no network namespace");
  shell("ip link set lo up");
}

}  // namespace ddp::testing
