# Finds LibTorch and describes it as the imported target ddp::torch. Used by this build and, installed, by find_package(ddp).
#
# Not by LibTorch's own package: that one refuses a CUDA build of LibTorch on a machine without the CUDA toolkit, though
# programs for the CPU need only the libraries. It looks in the same places: Torch_DIR, Torch_ROOT, CMAKE_PREFIX_PATH.

if(TARGET ddp::torch)
  return()
endif()

find_path(Torch_DIR TorchConfig.cmake HINTS ENV Torch_DIR ${Torch_ROOT} ENV Torch_ROOT
          PATH_SUFFIXES share/cmake/Torch Torch cmake/Torch lib/cmake/Torch)
if(NOT Torch_DIR)
  set(DDP_TORCH_NOT_FOUND "LibTorch was not found. With Python's torch installed, add \
-DCMAKE_PREFIX_PATH=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')")
  return()
endif()

if(NOT EXISTS ${Torch_DIR}/TorchConfig.cmake)
  set(DDP_TORCH_NOT_FOUND "Torch_DIR is ${Torch_DIR}, where no TorchConfig.cmake is: it is the folder share/cmake/Torch \
of LibTorch; or give LibTorch's own as CMAKE_PREFIX_PATH")
  return()
endif()
get_filename_component(DDP_TORCH_ROOT ${Torch_DIR}/../../.. REALPATH)
if(NOT EXISTS ${DDP_TORCH_ROOT}/include/fmt/base.h OR NOT EXISTS ${DDP_TORCH_ROOT}/lib/libtorch_cpu.so)
  set(DDP_TORCH_NOT_FOUND "LibTorch at ${DDP_TORCH_ROOT} is not a shared build of version 2.11 or newer")
  return()
endif()

add_library(ddp::torch INTERFACE IMPORTED)
set_target_properties(ddp::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${DDP_TORCH_ROOT}/include;${DDP_TORCH_ROOT}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
  # libtorch.so has no symbols of its own, but brings the devices' libraries in, so it must not be dropped.
  INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--no-as-needed,\"${DDP_TORCH_ROOT}/lib/libtorch.so\",--pop-state;\
${DDP_TORCH_ROOT}/lib/libtorch_cpu.so;${DDP_TORCH_ROOT}/lib/libc10.so")

# What a program needs beside it that calls LibTorch's CUDA part itself.
if(EXISTS ${DDP_TORCH_ROOT}/lib/libtorch_cuda.so)
  # CUDA's runtime: the very one that LibTorch loads, beside it in pip's packages, else in a toolkit.
  file(GLOB ddp_cudart_folders ${DDP_TORCH_ROOT}/../nvidia/*/lib)
  find_library(DDP_CUDART_LIBRARY NAMES libcudart.so.13 libcudart.so.12 cudart HINTS ${ddp_cudart_folders}
               PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES lib64 lib)
  mark_as_advanced(DDP_CUDART_LIBRARY)
  add_library(ddp::torch_cuda INTERFACE IMPORTED)
  set_target_properties(ddp::torch_cuda PROPERTIES
    INTERFACE_LINK_LIBRARIES "${DDP_TORCH_ROOT}/lib/libtorch_cuda.so;${DDP_TORCH_ROOT}/lib/libc10_cuda.so;\
$<$<BOOL:${DDP_CUDART_LIBRARY}>:${DDP_CUDART_LIBRARY}>")
endif()
