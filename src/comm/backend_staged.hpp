#pragma once
/// backend_staged.hpp: tensors on a device over a backend of the CPU, by way of the host's memory. For devices and
/// places that have no engine of their own, and for several ranks on one device.

#include <memory>
#include <string>

#include "comm/device_backend.hpp"

namespace ddp::comm {

/// Streams are kept in order as by the engines of devices: nothing waits on the caller's thread but, in synchronize(),
/// for the other ranks. `host` names the backend below, which each group makes anew, for its calls come in an order of
/// their own.
std::shared_ptr<const DeviceBackend> staged_device_backend(at::DeviceType type, std::string host);

}  // namespace ddp::comm
