// LibTorch's NCCL. Compiled, linked and run up to the search for a GPU; what comes after has never run.
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL
#endif
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/nccl.h>

#include <cstdlib>
#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/backend.hpp"
#include "comm/device_backend.hpp"
#include "comm/text_of.hpp"
#include "ddp/error.hpp"

namespace ddp::comm {
namespace {

using c10d::ProcessGroupNCCL;

constexpr std::string_view kPart = "init_process_group";

// Only variables reach these settings; one that the user has set stays. With a blocking wait, which this library never
// calls, there is no thread of NCCL's that could end the process. The others are for a user who has turned that off: a
// failed communicator is aborted, and a silent watchdog or an error of CUDA in it is no reason to end the process.
void keep_the_process_alive() {
  ::setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 0);
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", std::to_string(c10d::CleanUpOnly).c_str(), 0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
  ::setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 0);
  // A record of each call, which the watchdog alone would retire; this library keeps its own.
  ::setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", 0);
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
}

std::string text_of_version(std::uint64_t version) {
  const auto part = [&](int shift) { return std::to_string(version >> shift & 0xffff); };
  return part(32) + '.' + part(16) + '.' + part(0);
}

// "GPU-8c1f2a03-...", as nvidia-smi -L shows it.
std::string uuid_of(at::Device device) {
  std::string text = "GPU";
  std::size_t count = 0;
  for (const char byte : at::cuda::getDeviceProperties(device.index())->uuid.bytes) {
    if (const auto i = count++; i == 0 || (i >= 4 && i <= 10 && i % 2 == 0)) text += '-';
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

c10::intrusive_ptr<ProcessGroupNCCL::Options> options_of(const BackendSetup& setup) {
  auto options = ProcessGroupNCCL::Options::create(setup.nccl.high_priority_stream);
  options->timeout = kBeyondAnyTimeout;
  // split() looks them up, and knows them by itself for the first group of a process alone.
  options->global_ranks_in_group.resize(static_cast<std::size_t>(setup.environment.world_size));
  std::iota(options->global_ranks_in_group.begin(), options->global_ranks_in_group.end(), 0);
  return options;
}

// What LibTorch and NCCL say, after what can be done about it, as far as that is known.
[[noreturn]] void refuse(const BackendSetup& setup, const std::exception& error) {
  const Origin origin{setup.environment.rank, setup.environment.world_size};
  const std::string text = error.what();
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  if (says("Duplicate GPU"))
    throw ConfigError(origin, kPart, "NCCL found two ranks on one GPU: " + text, "start one process a device");
  if (says("version mismatch") || says("Version mismatch"))
    throw ConfigError(origin, kPart, "the ranks have different NCCLs: " + text, "give all hosts the same LibTorch");
  throw CommError(origin, kPart, "NCCL cannot connect the ranks: " + text,
                  "NCCL_DEBUG=WARN shows why; see docs/troubleshooting.md, NCCL and GPUs");
}

class NcclDeviceBackend final : public DeviceBackend {
 public:
  std::string name() const override { return "nccl"; }
  at::DeviceType type() const override { return at::kCUDA; }
  int visible() const override { return c10::cuda::device_count(); }
  void take(at::Device device) const override {
    c10::cuda::set_device(device.index());
    keep_the_process_alive();  // here, where no thread of this library reads variables yet
  }
  DeviceIdentity identity(at::Device device) const override {
    return {uuid_of(device), "NCCL " + text_of_version(torch::cuda::nccl::version())};
  }

  c10::intrusive_ptr<c10d::Backend> make(const BackendSetup& setup) const override {
    // LibTorch's "no GPUs found" in our words.
    visible_device(setup.environment, at::kCUDA, visible(), setup.device);
    const c10::cuda::CUDAGuard guard(setup.device);
    try {
      auto backend = c10::make_intrusive<ProcessGroupNCCL>(setup.store, setup.environment.rank,
                                                           setup.environment.world_size, options_of(setup));
      backend->setBoundDeviceId(setup.device);
      backend->eagerConnectSingleDevice(setup.device);
      return backend;
    } catch (const std::exception& error) {
      refuse(setup, error);
    }
  }

  bool can_split() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(c10d::Backend& parent, const BackendSetup& setup,
                                          const std::vector<int>& ranks) const override {
    const c10::cuda::CUDAGuard guard(setup.device);
    try {
      auto backend = parent.split(setup.store, ranks, options_of(setup));
      if (backend) backend->setBoundDeviceId(setup.device);
      return backend;
    } catch (const std::exception& error) {
      refuse(setup, error);
    }
  }

  bool is_capturing(at::Device device) const override {
    const c10::cuda::CUDAGuard guard(device);
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }
  // A question to the device is otherwise an error while any thread records a graph.
  void enter_polling_thread() const override {
    auto mode = cudaStreamCaptureModeThreadLocal;
    ::cudaThreadExchangeStreamCaptureMode(&mode);
  }
};

}  // namespace

std::string nccl_version() {
  return std::to_string(NCCL_MAJOR) + '.' + std::to_string(NCCL_MINOR) + '.' + std::to_string(NCCL_PATCH);
}

std::shared_ptr<const DeviceBackend> nccl_device_backend() { return std::make_shared<NcclDeviceBackend>(); }

}  // namespace ddp::comm
