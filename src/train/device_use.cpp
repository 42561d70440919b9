#include "train/device_use.hpp"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "ddp/log.hpp"

namespace ddp {
namespace {

void require_that_device(int number, const char* option, const ProcessGroup& group) {
  const auto device = group.device();
  if (device.is_cpu())
    throw std::logic_error(std::string("ddp: ") + option + " is " + std::to_string(number) +
                           ", but this rank works on the CPU; leave it out");
  if (number != device.index())
    throw std::logic_error(std::string("ddp: ") + option + " is " + std::to_string(number) +
                           ", but this rank works on " + device.str() + "; give " + std::to_string(device.index()) +
                           ", or leave it out");
}

// What the allocator of the device holds there; 0 where it does not say.
std::int64_t bytes_on(at::Device device) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return 0;
  return allocator->getDeviceStats(device.index()).reserved_bytes[kAll].current;
}

}  // namespace

void require_own_device(const std::vector<int>& device_ids, const std::optional<int>& output_device,
                        const ProcessGroup& group) {
  if (device_ids.size() > 1)
    throw std::logic_error("ddp: device_ids names " + std::to_string(device_ids.size()) +
                           " devices, but a process works on one; start a process for each");
  for (const int number : device_ids) require_that_device(number, "device_ids", group);
  if (output_device) require_that_device(*output_device, "output_device", group);
}

void warn_of_other_devices(const ProcessGroup& group) {
  const auto own = group.device();
  if (own.is_cpu()) return;
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(own.type());
  const int count = at::accelerator::deviceCount();
  std::string others;
  for (int i = 0; i < count; ++i) {
    const at::Device other(own.type(), static_cast<at::DeviceIndex>(i));
    if (other == own || !hooks.hasPrimaryContext(other.index())) continue;
    const auto bytes = bytes_on(other);
    others += (others.empty() ? "" : ", ") + other.str() +
              (bytes > 0 ? " (" + std::to_string(bytes >> 20) + " MiB of tensors)" : " (a context)");
  }
  if (others.empty()) return;
  log::all.warn(
      "this rank works on {}, but holds memory on {} too: something was put there without a device being named, as by "
      "torch::load() without one, or by \"cuda\" before init_process_group(), which makes the rank's device the "
      "current "
      "one; CUDA_VISIBLE_DEVICES with the rank's own device alone keeps it from happening",
      own.str(), others);
}

}  // namespace ddp
