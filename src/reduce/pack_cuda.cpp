// Launches pack_kernel.cu's kernels through the driver, so that no CUDA runtime but LibTorch's is in the process.
#include "reduce/pack_cuda.hpp"

#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <dlfcn.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "ddp/log.hpp"
#include "reduce/pack_choice.hpp"

// What nvcc has made of pack_kernel.cu.
extern const unsigned char ddp_pack_kernels[];

namespace ddp {
namespace {

// In the order of PackKernel.
constexpr std::array<const char*, kPackKernels> kNames{"ddp_pack_copy1", "ddp_pack_copy2",   "ddp_pack_copy4",
                                                       "ddp_pack_copy8", "ddp_pack_float",   "ddp_pack_double",
                                                       "ddp_pack_half",  "ddp_pack_bfloat16"};

/// The driver's functions; a program that runs without a GPU may have no driver, so it is not linked.
struct Driver {
  decltype(&cuGetErrorString) error_string;
  decltype(&cuDeviceGet) device;
  decltype(&cuDevicePrimaryCtxRetain) primary_context;
  decltype(&cuCtxPushCurrent) push;
  decltype(&cuCtxPopCurrent) pop;
  decltype(&cuModuleLoadData) load;
  decltype(&cuModuleGetFunction) function;
  decltype(&cuLaunchKernel) launch;
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw std::runtime_error("the CUDA driver has no " + std::string(name));
}

// The names of cuda.h hide these endings.
Driver open_driver() {
  auto* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error("there is no CUDA driver: " + std::string(::dlerror()));
  Driver driver{};
  find(library, "cuGetErrorString", driver.error_string);
  find(library, "cuDeviceGet", driver.device);
  find(library, "cuDevicePrimaryCtxRetain", driver.primary_context);
  find(library, "cuCtxPushCurrent_v2", driver.push);
  find(library, "cuCtxPopCurrent_v2", driver.pop);
  find(library, "cuModuleLoadData", driver.load);
  find(library, "cuModuleGetFunction", driver.function);
  find(library, "cuLaunchKernel", driver.launch);
  return driver;
}

const Driver& driver() {
  static const Driver opened = open_driver();
  return opened;
}

void require(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().error_string(result, &text);
  throw std::runtime_error("ddp: " + std::string(what) + ": " +
                           (text != nullptr ? text : "error " + std::to_string(result)));
}

/// The primary context, which is LibTorch's too, is this thread's for the scope.
class ContextScope {
 public:
  explicit ContextScope(CUcontext context) { require(driver().push(context), "cuCtxPushCurrent"); }
  ~ContextScope() {
    CUcontext ours = nullptr;
    driver().pop(&ours);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
};

/// Stays until the process ends, as the context does.
struct Kernels {
  CUcontext context = nullptr;
  std::array<CUfunction, kPackKernels> functions{};
};

Kernels load(at::Device device) {
  Kernels kernels;
  CUdevice number = 0;
  require(driver().device(&number, device.index()), "cuDeviceGet");
  require(driver().primary_context(&kernels.context, number), "cuDevicePrimaryCtxRetain");
  const ContextScope scope(kernels.context);
  CUmodule module = nullptr;
  require(driver().load(&module, ddp_pack_kernels), "cuModuleLoadData");
  for (std::size_t i = 0; i < kPackKernels; ++i)
    require(driver().function(&kernels.functions[i], module, kNames[i]), kNames[i]);
  return kernels;
}

/// Of each device; none where they could not be loaded.
class LoadedKernels {
 public:
  const Kernels* of(at::Device device) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = kernels_.try_emplace(device.index());
    if (is_new) try_load(device, entry->second);
    return entry->second ? &*entry->second : nullptr;
  }

 private:
  static void try_load(at::Device device, std::optional<Kernels>& kernels) {
    try {
      kernels = load(device);
    } catch (const std::runtime_error& error) {
      log::all.warn("gradients are packed by LibTorch's operators, for this library's kernels do not load on {}: {}",
                    device.str(), error.what());
    }
  }

  std::mutex mutex_;
  std::map<at::DeviceIndex, std::optional<Kernels>> kernels_;
};

LoadedKernels& loaded_kernels() {
  static LoadedKernels loaded;
  return loaded;
}

struct Launch {
  CUfunction function;
  CUstream stream;

  void operator()(const pack::Table& table) const {
    void* arguments[] = {const_cast<pack::Table*>(&table)};
    require(driver().launch(function, table.blocks(), 1, 1, pack::kThreads, 1, 1, 0, stream, arguments, nullptr),
            "cuLaunchKernel");
  }
};

}  // namespace

bool load_cuda_pack(at::Device device) { return loaded_kernels().of(device) != nullptr; }

bool cuda_pack(at::TensorList slots, at::TensorList gradients, double factor) {
  if (slots.empty()) return true;
  const auto device = slots.front().device();
  const auto choice = choose_pack_kernel(slots.front().scalar_type(), factor);
  const auto* kernels = choice ? loaded_kernels().of(device) : nullptr;
  if (kernels == nullptr) return false;
  const ContextScope scope(kernels->context);
  const Launch launch{kernels->functions[static_cast<std::size_t>(choice->kernel)],
                      c10::cuda::getCurrentCUDAStream(device.index()).stream()};
  const pack::Table table{reinterpret_cast<std::uintptr_t>(slots.front().storage().mutable_data()), factor};
  pack::for_each_table(table, pack_segments(slots, gradients, choice->units), choice->unit_bytes, launch);
  return true;
}

}  // namespace ddp
