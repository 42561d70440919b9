#pragma once
/// backend.hpp: the engines that move the bytes. Each is made in a file of its own.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ddp/environment.hpp"
#include "ddp/process_group.hpp"

namespace ddp::comm {

class DeviceBackend;

/// Whether this build has LibTorch's NCCL. Functions with nccl in their names exist in such builds alone.
#ifdef DDP_WITH_NCCL
inline constexpr bool kHasNccl = true;
#else
inline constexpr bool kHasNccl = false;
#endif

/// A backend's own time limit: longer than any training waits for one call, so that our limits are the ones
/// that end waits, and short enough for the backend's arithmetic on time.
inline constexpr std::chrono::hours kBeyondAnyTimeout{24 * 365};

/// `name`, or for "auto" the variable DDP_BACKEND where it is set, once it is known to be there in this build. For
/// "auto" alone "nccl", where this process sees a GPU and `device` does not ask for another kind of device.
/// Errors: ConfigError for a name that is unknown or that this build has no backend for.
std::string choose_backend(std::string_view name, const Environment& environment,
                           const std::optional<at::Device>& device = std::nullopt);

/// The device of a process that sees `visible` ones of a type: the one asked for, else that of its local rank's number,
/// else the only one, as where a launcher shows each process its own alone.
/// Errors: ConfigError where it sees none, or too few.
at::Device visible_device(const Environment& environment, at::DeviceType type, int visible,
                          const std::optional<at::Device>& asked);

/// What carries tensors that are not in memory, and the device that a rank works on.
struct DeviceChoice {
  std::string host;                                  ///< for make_host_backend()
  std::shared_ptr<const DeviceBackend> engine = {};  ///< null: it works on the CPU
  at::Device device = at::kCPU;
};

/// That of a rank with this backend; also makes the device the process's current one. `asked`: with "nccl", which GPU;
/// with a backend of the CPU, a device whose tensors go through the host's memory.
/// Errors: ConfigError, see visible_device().
DeviceChoice choose_device(std::string_view backend, const Environment& environment,
                           const std::optional<at::Device>& asked);

/// What every backend of several ranks is made from.
struct BackendSetup {
  c10::intrusive_ptr<c10d::Store> store;
  Environment environment;
  at::Device device = at::kCPU;
  /// True once no call of the group can end any more.
  std::function<bool()> is_broken;
  /// True once the group's rank has left in order.
  std::function<bool(int)> has_left;
  NcclOptions nccl;
};

/// Collective. For tensors in memory, beside whatever engine choose_backend() has named; its own time limit is
/// kBeyondAnyTimeout. "gloo", or shared memory where all ranks can have it, else Gloo, for which rank 0 says the
/// reason. Errors: ConfigError on every rank where "shm" is wanted and not to be had.
c10::intrusive_ptr<c10d::Backend> make_host_backend(std::string_view name, const BackendSetup& setup);

/// LibTorch's Gloo. Blocks until all ranks are connected.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup);

/// LibTorch's NCCL.
std::shared_ptr<const DeviceBackend> nccl_device_backend();
/// The version that this was compiled for: "2.30.7".
std::string nccl_version();

}  // namespace ddp::comm
