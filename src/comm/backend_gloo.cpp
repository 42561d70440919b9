// Gloo's headers are Debian's, its code is LibTorch's: no gloo type is made or derived from here.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <cstdlib>
#include <sstream>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "comm/backend.hpp"
#include "comm/own_address.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using c10d::ProcessGroupGloo;

void add_devices(ProcessGroupGloo::Options& options, const Environment& environment) {
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME"); names != nullptr && *names != '\0') {
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      log::detail(log::Subsystem::init, "gloo: interface {} (GLOO_SOCKET_IFNAME)", name);
      options.devices.push_back(ProcessGroupGloo::createDeviceForInterface(name, false));
    }
    return;
  }
  const auto address = own_address(environment);
  log::detail(log::Subsystem::init, "gloo: address {}", address.empty() ? "of this host's name" : address);
  options.devices.push_back(address.empty() ? ProcessGroupGloo::createDefaultDevice(false)
                                            : ProcessGroupGloo::createDeviceForHostname(address, false));
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup) {
  auto options = ProcessGroupGloo::Options::create(kBeyondAnyTimeout);
  add_devices(*options, setup.environment);
  options->threads = 2 * static_cast<int>(options->devices.size());
  return c10::make_intrusive<ProcessGroupGloo>(setup.store, setup.environment.rank, setup.environment.world_size,
                                               std::move(options));
}

}  // namespace ddp::comm
