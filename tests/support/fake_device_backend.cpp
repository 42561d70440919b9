#include "support/fake_device_backend.hpp"

#include <algorithm>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "support/fake_collectives.hpp"

namespace ddp::testing {

FakeEngineState& fake_engine() {
  static auto* const state = new FakeEngineState;  // a thread of a call may outlive what is static
  return *state;
}

void FakeDeviceBackend::take(at::Device device) const {
  fake_accelerator();
  fake_engine().note("take " + std::to_string(device.index()));
  c10::impl::getDeviceGuardImpl(type())->setDevice(device);
}

comm::DeviceIdentity FakeDeviceBackend::identity(at::Device device) const {
  const int index = fake_engine().is_shared ? 0 : device.index();
  return {"fake-" + std::to_string(index), "fake " + std::to_string(fake_engine().library_version.load())};
}

c10::intrusive_ptr<c10d::Backend> FakeDeviceBackend::make(const comm::BackendSetup& setup) const {
  fake_accelerator();
  fake_engine().note("make on " + std::to_string(setup.device.index()));
  auto carried = setup;
  carried.store = c10::make_intrusive<c10d::PrefixStore>("fake_device", setup.store);
  carried.device = at::kCPU;
  return c10::make_intrusive<FakeCollectives>(comm::make_gloo_backend(carried), setup.device);
}

// As NCCL does, with those that are left out too: they meet.
c10::intrusive_ptr<c10d::Backend> FakeDeviceBackend::split(c10d::Backend& parent, const comm::BackendSetup& setup,
                                                           const std::vector<int>& ranks) const {
  const bool is_member = std::find(ranks.begin(), ranks.end(), parent.getRank()) != ranks.end();
  fake_engine().note(is_member ? "split" : "split without this rank");
  parent.barrier()->wait();
  return is_member ? make(setup) : nullptr;
}

bool FakeDeviceBackend::is_capturing(at::Device) const { return fake_accelerator().is_capturing; }

}  // namespace ddp::testing
