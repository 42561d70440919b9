#pragma once
/// backend.hpp: the engines that move the bytes. Each is made in a file of its own.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "ddp/environment.hpp"

namespace ddp::comm {

/// Whether this build has LibTorch's NCCL. Functions with nccl in their names exist in such builds alone.
#ifdef DDP_WITH_NCCL
inline constexpr bool kHasNccl = true;
#else
inline constexpr bool kHasNccl = false;
#endif

/// A backend's own time limit: longer than any training waits for one call, so that our limits are the ones
/// that end waits, and short enough for the backend's arithmetic on time.
inline constexpr std::chrono::hours kBeyondAnyTimeout{24 * 365};

/// `name`, or for "auto" the variable DDP_BACKEND where it is set, once it is known to be there in this build.
/// Errors: ConfigError for a name that is unknown or that this build has no backend for.
std::string choose_backend(std::string_view name, const Environment& environment);

/// The CUDA device of a process that sees `visible` of them: the one with its local rank's number.
/// Errors: ConfigError where it sees none, or too few.
at::Device cuda_device_of(const Environment& environment, int visible);

/// The device that a rank with this backend works on; also makes it the process's current one.
/// Errors: ConfigError, see cuda_device_of().
at::Device take_device(std::string_view backend, const Environment& environment);

/// What every backend of several ranks is made from.
struct BackendSetup {
  c10::intrusive_ptr<c10d::Store> store;
  Environment environment;
  at::Device device = at::kCPU;
  /// True once no call of the group can end any more.
  std::function<bool()> is_broken;
  /// True once the group's rank has left in order.
  std::function<bool(int)> has_left;
};

/// Collective. The backend that choose_backend() has named; its own time limit is kBeyondAnyTimeout. For "auto", shared
/// memory where all ranks can have it, else Gloo, for which rank 0 says the reason. Errors: ConfigError on every rank
/// where "shm" is wanted and not to be had.
c10::intrusive_ptr<c10d::Backend> make_backend(std::string_view name, const BackendSetup& setup);

/// LibTorch's Gloo. Blocks until all ranks are connected.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup);

/// LibTorch's NCCL on setup.device. The ranks connect in their first call.
/// Errors: ConfigError where the process sees no CUDA device.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup& setup);
/// NCCL's take_device().
at::Device take_nccl_device(const Environment& environment);
/// The version that this was compiled for: "2.30.7".
std::string nccl_version();

}  // namespace ddp::comm
