// LibTorch's NCCL. Compiled, linked and run up to the search for a GPU; what comes after has never run.
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL
#endif
#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/backend.hpp"

namespace ddp::comm {
namespace {

using c10d::ProcessGroupNCCL;

// Only variables reach these settings; one that the user has set stays. With a blocking wait there is no thread of
// NCCL's that could end the process. The others are for a user who has turned that off: a failed communicator is
// aborted, and a silent watchdog or an error of CUDA in it is no reason to end the process.
void keep_the_process_alive() {
  ::setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 0);
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", std::to_string(c10d::CleanUpOnly).c_str(), 0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
  ::setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 0);
}

}  // namespace

std::string nccl_version() {
  return std::to_string(NCCL_MAJOR) + '.' + std::to_string(NCCL_MINOR) + '.' + std::to_string(NCCL_PATCH);
}

at::Device take_nccl_device(const Environment& environment) {
  const auto device = cuda_device_of(environment, c10::cuda::device_count());
  c10::cuda::set_device(device.index());
  keep_the_process_alive();  // here, where no thread of this library reads variables yet
  return device;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup& setup) {
  auto options = ProcessGroupNCCL::Options::create();
  options->timeout = kBeyondAnyTimeout;
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = c10::make_intrusive<ProcessGroupNCCL>(setup.store, setup.environment.rank, setup.environment.world_size,
                                                    std::move(options));
  } catch (const c10::Error&) {
    cuda_device_of(setup.environment, c10::cuda::device_count());  // "no GPUs found" in our words
    throw;
  }
  backend->setBoundDeviceId(setup.device);  // else barrier() guesses one
  return backend;
}

}  // namespace ddp::comm
