#pragma once
/// device_side.hpp: the part of a group that is on a device: what carries its calls, and who learns their ends.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "comm/device_backend.hpp"
#include "comm/device_watch.hpp"

namespace ddp::comm {

class DeviceSide {
 public:
  /// `backend` was made by `engine` on `device`.
  DeviceSide(const std::shared_ptr<const DeviceBackend>& engine, at::Device device,
             c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<Session> session);
  /// Once no call is under way. Ends the engine in order, for which it takes some seconds at most: an engine may need
  /// the other ranks for that, which may have gone.
  ~DeviceSide();
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  c10d::Backend& backend() const { return *backend_; }
  const std::shared_ptr<DeviceWatch>& watch() const { return watch_; }

 private:
  const at::Device device_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<DeviceWatch> watch_;
};

}  // namespace ddp::comm
