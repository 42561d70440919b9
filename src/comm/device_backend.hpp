#pragma once
/// device_backend.hpp: an accelerator's own engine, for tensors on it; those in the host's memory go another way.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend.hpp"
#include "comm/wire.hpp"

namespace ddp::comm {

/// A device and what drives it, as ranks compare them; empty where nothing is to be compared.
struct DeviceIdentity {
  std::string device;   ///< the same for two processes on one device of a host, and for no others: "GPU-8c1f..."
  std::string library;  ///< what all ranks must have alike: "NCCL 2.30.7"
};

/// One kind of engine, NCCL for one. What it makes is a c10d::Backend whose works end on the device: synchronize()
/// has the current stream wait for the end, isCompleted() asks for it, and abort() of the backend ends them all.
/// Threads: all members are safe.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  virtual std::string name() const = 0;
  /// The kind of device, and how many of it this process sees.
  virtual at::DeviceType type() const = 0;
  virtual int visible() const = 0;
  /// Makes the device this process's current one, before anything can touch another.
  virtual void take(at::Device device) const = 0;
  virtual DeviceIdentity identity(at::Device device) const = 0;
  virtual Reductions reductions(int ranks) const {
    return {.ranks = ranks, .of_half_types = true, .of_int16 = false, .of_means = true};
  }
  /// Collective. Connects the ranks on setup.device at once.
  virtual c10::intrusive_ptr<c10d::Backend> make(const BackendSetup& setup) const = 0;
  /// Collective over the ranks of `parent`, also those that are not among `ranks`, for which it is null. The same
  /// for a group of some of them; null on all where the engine has nothing better than make().
  virtual c10::intrusive_ptr<c10d::Backend> split(c10d::Backend& /*parent*/, const BackendSetup& /*setup*/,
                                                  const std::vector<int>& /*ranks*/) const {
    return {};
  }
  virtual bool can_split() const { return false; }
  /// True while the current stream is recorded into a graph, when nobody may ask for the end of what it holds.
  virtual bool is_capturing(at::Device device) const = 0;
  /// Once on each thread that asks works for their ends.
  virtual void enter_polling_thread() const {}
};

/// The one of that name; null where this build has none.
std::shared_ptr<const DeviceBackend> device_backend(std::string_view name);
/// Has device_backend() know another one, for the life of the process.
void add_device_backend(std::shared_ptr<const DeviceBackend> backend);

}  // namespace ddp::comm
