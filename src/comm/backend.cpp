#include "comm/backend.hpp"

#include "ddp/error.hpp"

namespace ddp::comm {
namespace {

constexpr std::string_view kPart = "init_process_group";

}  // namespace

// "auto" is not NCCL on machines with GPUs yet: signatures and byte strings are tensors of the CPU, which NCCL refuses.
std::string choose_backend(std::string_view name, const Environment& environment) {
  if (name == "auto" || name == "gloo") return "gloo";
  if (name == "nccl" && kHasNccl) return "nccl";
  const Origin origin{environment.rank, environment.world_size};
  const std::string quoted = '"' + std::string(name) + '"';
  if (name == "nccl" || name == "shm")
    throw ConfigError(origin, kPart, "backend " + quoted + " is not in this build yet", "use \"auto\" or \"gloo\"");
  throw ConfigError(origin, kPart, "unknown backend " + quoted, "known are \"auto\", \"gloo\", \"nccl\" and \"shm\"");
}

at::Device cuda_device_of(const Environment& environment, int visible) {
  const Origin origin{environment.rank, environment.world_size};
  if (visible < 1)
    throw ConfigError(origin, kPart, "backend \"nccl\" needs a GPU, and this process sees no CUDA device",
                      "see what nvidia-smi shows and whether CUDA_VISIBLE_DEVICES hides it; on the CPU, use \"auto\" "
                      "or \"gloo\"");
  if (environment.local_rank < 0 || environment.local_rank >= visible)
    throw ConfigError(origin, kPart,
                      "local rank " + std::to_string(environment.local_rank) +
                          " has no CUDA device: this process sees " + std::to_string(visible),
                      "start one process a device, or set LOCAL_RANK=0 where each process sees its own alone");
  return {at::kCUDA, static_cast<at::DeviceIndex>(environment.local_rank)};
}

at::Device take_device(std::string_view backend, const Environment& environment) {
  if constexpr (kHasNccl)
    if (backend == "nccl") return take_nccl_device(environment);
  return at::kCPU;
}

c10::intrusive_ptr<c10d::Backend> make_backend(std::string_view name, const BackendSetup& setup) {
  if constexpr (kHasNccl)
    if (name == "nccl") return make_nccl_backend(setup);
  return make_gloo_backend(setup);
}

}  // namespace ddp::comm
