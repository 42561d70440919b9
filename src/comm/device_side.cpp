#include "comm/device_side.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

constexpr std::chrono::seconds kLimit{5};

void say(const char* why) { log::all.debug("the device's engine could not be ended in order: {}", why); }

}  // namespace

DeviceSide::DeviceSide(const std::shared_ptr<const DeviceBackend>& engine, at::Device device,
                       c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<Session> session)
    : device_(device),
      backend_(std::move(backend)),
      watch_(std::make_shared<DeviceWatch>(engine, device, backend_, std::move(session))) {}

DeviceSide::~DeviceSide() {
  watch_.reset();
  try {
    const auto ended = std::make_shared<std::promise<void>>();
    std::thread([engine = std::move(backend_), device = device_, ended]() mutable {
      try {
        c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
        engine->shutdown();
      } catch (const std::exception& error) {
        say(error.what());
      }
      engine.reset();
      ended->set_value();
    }).detach();
    if (ended->get_future().wait_for(kLimit) != std::future_status::ready)
      log::all.warn(
          "the device's engine does not end, and is left alone: graphs that hold its calls have to be reset() before "
          "the "
          "group is shut down, and all ranks have to shut it down");
  } catch (const std::exception& error) {  // no thread
    say(error.what());
  }
}

}  // namespace ddp::comm
