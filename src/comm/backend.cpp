#include "comm/backend.hpp"

#include <cstdlib>

#include "comm/backend_shm.hpp"
#include "comm/shm_meeting.hpp"

#include "ddp/error.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

constexpr std::string_view kPart = "init_process_group";

c10::intrusive_ptr<c10d::Backend> make_shm_or_gloo(std::string_view name, const BackendSetup& setup) {
  auto verdict = share_memory(setup);
  if (verdict.memory) return c10::make_intrusive<ShmBackend>(std::move(verdict.memory), setup);
  if (name == "shm")
    throw ConfigError({setup.environment.rank, setup.environment.world_size}, kPart,
                      "backend \"shm\" cannot be had: " + verdict.why_not, "use \"auto\", which takes Gloo then");
  // Between hosts that is as it must be.
  if (setup.environment.single_host())
    log::warn("no shared memory, so the ranks talk over Gloo, which is slower: {}", verdict.why_not);
  else
    log::detail(log::Subsystem::init, "no shared memory: {}", verdict.why_not);
  return make_gloo_backend(setup);
}

}  // namespace

// "auto" is not NCCL on machines with GPUs yet: signatures and byte strings are tensors of the CPU, which NCCL refuses.
std::string choose_backend(std::string_view name, const Environment& environment) {
  const char* const variable = std::getenv("DDP_BACKEND");
  if (name == "auto" && variable != nullptr && *variable != '\0') name = variable;
  if (name == "auto" || name == "gloo" || name == "shm" || (name == "nccl" && kHasNccl)) return std::string(name);
  const Origin origin{environment.rank, environment.world_size};
  const bool is_variables = variable != nullptr && name == variable;
  const std::string quoted = (is_variables ? "DDP_BACKEND=\"" : "\"") + std::string(name) + '"';
  if (name == "nccl")
    throw ConfigError(origin, kPart, "backend " + quoted + " is not in this build",
                      "configure it with DDP_CUDA, or use \"auto\"");
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
  return name == "gloo" ? make_gloo_backend(setup) : make_shm_or_gloo(name, setup);
}

}  // namespace ddp::comm
