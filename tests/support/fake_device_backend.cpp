#include "support/fake_device_backend.hpp"

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

bool FakeDeviceBackend::is_capturing(at::Device) const { return fake_accelerator().is_capturing; }

}  // namespace ddp::testing
