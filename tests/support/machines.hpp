#pragma once
/// machines.hpp: machines of a test's own, each with a name, a network and names of hosts. Needs the right to make
/// namespaces. Knows no torch.

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "base/descriptor.hpp"
#include "support/child.hpp"
#include "support/own_network.hpp"

namespace ddp::testing {

/// Is there as long as this object.
class Machine {
 public:
  /// `hosts` is its /etc/hosts.
  Machine(const std::string& name, const std::filesystem::path& hosts)
      : child_([&] {
          enter_new_network();
          if (::unshare(CLONE_NEWUTS | CLONE_NEWNS) != 0) throw std::runtime_error("no namespaces");
          if (::sethostname(name.data(), name.size()) != 0) throw std::runtime_error("sethostname");
          shell("mount --make-rprivate /; mount --bind " + hosts.string() + " /etc/hosts");
        }) {}

  pid_t pid() const { return child_.pid(); }

  /// This process, which has one thread, runs there from now on, in the root folder.
  void enter() const {
    for (const auto* const kind : {"net", "uts", "mnt"}) {
      const auto path = "/proc/" + std::to_string(pid()) + "/ns/" + kind;
      const Descriptor space(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (::setns(space.get(), 0) != 0) throw std::runtime_error("setns " + path);
    }
  }

 private:
  Child child_;
};

/// Gives them the addresses 10.8.0.1 and 10.8.0.2.
inline void join_by_cable(const Machine& first, const Machine& second) {
  const auto on = [](const Machine& machine) {
    return "nsenter --net --target " + std::to_string(machine.pid()) + " ";
  };
  shell(on(first) + "ip link add cable type veth peer name cable netns " + std::to_string(second.pid()) + "; " +
        on(first) + "ip addr add 10.8.0.1/24 dev cable; " + on(first) + "ip link set cable up; " + on(second) +
        "ip addr add 10.8.0.2/24 dev cable; " + on(second) + "ip link set cable up");
}

}  // namespace ddp::testing
