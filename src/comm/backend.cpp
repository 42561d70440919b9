#include "comm/backend.hpp"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>

#include "comm/backend_shm.hpp"
#include "comm/backend_staged.hpp"
#include "comm/device_backend.hpp"
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

std::string choose_backend(std::string_view name, const Environment& environment,
                           const std::optional<at::Device>& device) {
  const char* const variable = std::getenv("DDP_BACKEND");
  if (name == "auto" && variable != nullptr && *variable != '\0') name = variable;
  if (name == "auto") {
    const auto nccl = device_backend("nccl");
    const bool suits = nccl && (device ? device->type() == nccl->type() : nccl->visible() > 0);
    return suits ? "nccl" : "auto";
  }
  if (name == "gloo" || name == "shm" || device_backend(name)) return std::string(name);
  const Origin origin{environment.rank, environment.world_size};
  const bool is_variables = variable != nullptr && name == variable;
  const std::string quoted = (is_variables ? "DDP_BACKEND=\"" : "\"") + std::string(name) + '"';
  if (name == "nccl")
    throw ConfigError(origin, kPart, "backend " + quoted + " is not in this build",
                      "configure it with DDP_WITH_NCCL, or use \"auto\"");
  throw ConfigError(origin, kPart, "unknown backend " + quoted, "known are \"auto\", \"gloo\", \"nccl\" and \"shm\"");
}

at::Device visible_device(const Environment& environment, at::DeviceType type, int visible,
                          const std::optional<at::Device>& asked) {
  const Origin origin{environment.rank, environment.world_size};
  const std::string kind = type == at::kCUDA ? "CUDA" : c10::DeviceTypeName(type, true);
  if (visible < 1) {
    const bool is_built = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(type)].load() != nullptr;
    std::string remedy = is_built ? "" : "this LibTorch is built without " + kind + "; ";
    if (is_built && type == at::kCUDA) remedy = "see what nvidia-smi shows and whether CUDA_VISIBLE_DEVICES hides it; ";
    remedy += asked ? "for the CPU, leave out ProcessGroupOptions::device" : "for the CPU, use \"gloo\" or \"shm\"";
    throw ConfigError(origin, kPart, "this process sees no " + kind + " device, and is to work on one", remedy);
  }
  const bool is_chosen = asked && asked->has_index();
  const int number = is_chosen ? asked->index() : visible == 1 ? 0 : environment.local_rank;
  if (number < 0 || number >= visible)
    throw ConfigError(origin, kPart,
                      (is_chosen ? "there is no " + kind + " device " + std::to_string(number)
                                 : "local rank " + std::to_string(number) + " has no " + kind + " device") +
                          ": this process sees " + std::to_string(visible),
                      is_chosen ? "devices count from 0 among those that are visible"
                                : "start one process a device; several on one work with backend \"gloo\" or \"shm\" "
                                  "and ProcessGroupOptions::device");
  return {type, static_cast<at::DeviceIndex>(number)};
}

DeviceChoice choose_device(std::string_view backend, const Environment& environment,
                           const std::optional<at::Device>& asked) {
  const Origin origin{environment.rank, environment.world_size};
  auto engine = device_backend(backend);
  if (engine && asked && asked->type() != engine->type())
    throw ConfigError(origin, kPart, "backend \"" + std::string(backend) + "\" does not work on " + asked->str(),
                      "leave the device out, or use backend \"gloo\" or \"shm\"");
  std::string host(engine ? "auto" : backend);
  if (!engine && (!asked || asked->is_cpu())) return {std::move(host)};
  if (!engine && !at::isAccelerator(asked->type()))
    throw ConfigError(origin, kPart, "no rank can work on the device " + asked->str(), "leave it out, or name a GPU");
  if (!engine) engine = staged_device_backend(asked->type(), host);
  const auto device = visible_device(environment, engine->type(), engine->visible(), asked);
  engine->take(device);
  return {std::move(host), std::move(engine), device};
}

c10::intrusive_ptr<c10d::Backend> make_host_backend(std::string_view name, const BackendSetup& setup) {
  return name == "gloo" ? make_gloo_backend(setup) : make_shm_or_gloo(name, setup);
}

}  // namespace ddp::comm
