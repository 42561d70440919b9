// The kernels behind pack_cuda.cpp, a name for each PackKernel. See pack_layout.hpp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "reduce/pack_layout.hpp"

namespace {

using ddp::pack::kThreads;
using ddp::pack::Table;

template <class Element>
__device__ void copy(const Table& table) {
  ddp::pack::run<Element>(table, blockIdx.x, threadIdx.x, [](Element element) { return element; });
}

// As LibTorch's product with a number: the factor in the type that is multiplied in, one rounding to the element's.
template <class Element>
__device__ void multiply(const Table& table) {
  const auto factor = static_cast<Element>(table.factor);
  ddp::pack::run<Element>(table, blockIdx.x, threadIdx.x, [factor](Element element) { return element * factor; });
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(kThreads) ddp_pack_copy1(const Table table) { copy<std::uint8_t>(table); }
__global__ void __launch_bounds__(kThreads) ddp_pack_copy2(const Table table) { copy<std::uint16_t>(table); }
__global__ void __launch_bounds__(kThreads) ddp_pack_copy4(const Table table) { copy<std::uint32_t>(table); }
__global__ void __launch_bounds__(kThreads) ddp_pack_copy8(const Table table) { copy<std::uint64_t>(table); }

__global__ void __launch_bounds__(kThreads) ddp_pack_float(const Table table) { multiply<float>(table); }
__global__ void __launch_bounds__(kThreads) ddp_pack_double(const Table table) { multiply<double>(table); }

__global__ void __launch_bounds__(kThreads) ddp_pack_half(const Table table) {
  const auto factor = static_cast<float>(table.factor);
  ddp::pack::run<__half>(table, blockIdx.x, threadIdx.x,
                         [factor](__half element) { return __float2half_rn(__half2float(element) * factor); });
}

__global__ void __launch_bounds__(kThreads) ddp_pack_bfloat16(const Table table) {
  const auto factor = static_cast<float>(table.factor);
  ddp::pack::run<__nv_bfloat16>(table, blockIdx.x, threadIdx.x, [factor](__nv_bfloat16 element) {
    return __float2bfloat16_rn(__bfloat162float(element) * factor);
  });
}

}  // extern "C"
