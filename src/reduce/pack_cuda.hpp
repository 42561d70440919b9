#pragma once
/// pack_cuda.hpp: the packing kernels on a GPU.

#include <ATen/core/Tensor.h>

namespace ddp {

/// Loads the kernels for the GPU unless they are; not while a graph is captured there. False, with a warning once,
/// where its driver does not take them. Threads: safe.
bool load_cuda_pack(at::Device device);

/// A PackFunction, for GPUs whose kernels are loaded.
bool cuda_pack(at::TensorList slots, at::TensorList gradients, double factor);

}  // namespace ddp
