# Decides whether this build has the NCCL backend and kernels of its own, and finds what their sources need.
#
# The backend calls LibTorch's ProcessGroupNCCL, whose header includes some of CUDA's and NCCL's; it is C++ and needs no
# nvcc. CUDA's headers are those beside torch, in pip's packages, for they are of torch's version; what those lack is in
# the packages nvidia-cuda-crt and nvidia-cuda-cccl or in a CUDA toolkit. Sets DDP_WITH_NCCL, DDP_CUDA_INCLUDE_DIRS and
# DDP_CUDA_KERNELS.
include(CheckCXXSourceCompiles)

# Looks for a CUDA toolkit without a word; a part of one serves too.
macro(ddp_look_for_cuda_toolkit)
  if(NOT CUDAToolkit_ROOT AND NOT DEFINED ENV{CUDAToolkit_ROOT} AND DEFINED ENV{CUDA_HOME})
    set(CUDAToolkit_ROOT $ENV{CUDA_HOME})
  endif()
  find_package(CUDAToolkit QUIET)
endmacro()

# Sets `missing` to what keeps the backend from being built, or to nothing.
function(ddp_find_cuda_headers missing)
  set(${missing} "" PARENT_SCOPE)
  if(NOT NCCL_FOUND)
    set(${missing} "<nccl.h> was not found: neither beside torch in pip's packages (nvidia-nccl-cu*), nor in a CUDA \
toolkit or the system (libnccl-dev); NCCL_ROOT can name its folder" PARENT_SCOPE)
    return()
  endif()
  set(directories ${NCCL_INCLUDE_DIR})
  # nvidia/cu13/include; one folder a library in wheels of CUDA 12: nvidia/cublas/include, ...
  file(GLOB wheels ${DDP_TORCH_ROOT}/../nvidia/*/include ${DDP_TORCH_ROOT}/../nvidia/*/include/cccl)
  foreach(header cuda_runtime_api.h crt/host_config.h nv/target cublas_v2.h cusparse.h cusolverDn.h)
    string(MAKE_C_IDENTIFIER "DDP_CUDA_DIR_OF_${header}" variable)
    find_path(${variable} ${header} HINTS ${wheels} ${CUDAToolkit_INCLUDE_DIRS}
              PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES include include/cccl cccl)
    mark_as_advanced(${variable})
    if(NOT ${variable})
      set(${missing} "<${header}> was not found: neither beside torch in pip's packages (nvidia-cuda-crt and \
nvidia-cuda-cccl complete them) nor in a CUDA toolkit (CUDA_HOME)" PARENT_SCOPE)
      return()
    endif()
    list(APPEND directories ${${variable}})
  endforeach()
  list(REMOVE_DUPLICATES directories)
  set(DDP_CUDA_INCLUDE_DIRS ${directories} PARENT_SCOPE)

  set(CMAKE_REQUIRED_FLAGS -std=c++20)
  set(CMAKE_REQUIRED_DEFINITIONS -DUSE_C10D_NCCL)
  set(CMAKE_REQUIRED_INCLUDES ${directories})
  set(CMAKE_REQUIRED_LIBRARIES ddp::torch ddp::torch_cuda)
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_source_compiles("#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
                             int main() { return c10d::ProcessGroupNCCL::Options::create()->is_high_priority_stream; }"
                            DDP_CUDA_HEADERS_FIT)
  if(NOT DDP_CUDA_HEADERS_FIT)
    unset(DDP_CUDA_HEADERS_FIT CACHE)  # looked at again next time
    string(REPLACE ";" ", " listed "${directories}")
    set(${missing} "LibTorch's ProcessGroupNCCL does not compile or link with the headers in ${listed}; \
a log in ${CMAKE_BINARY_DIR}/CMakeFiles has the reason" PARENT_SCOPE)
  endif()
endfunction()

set(ddp_without_nccl)
if(NOT DEFINED DDP_WITH_NCCL OR DDP_WITH_NCCL)
  if(TARGET ddp::torch_cuda)
    ddp_look_for_cuda_toolkit()
    find_package(NCCL QUIET)
    ddp_find_cuda_headers(ddp_without_nccl)
  else()
    set(ddp_without_nccl "LibTorch at ${DDP_TORCH_ROOT} is no CUDA build")
  endif()
endif()
if(DDP_WITH_NCCL AND ddp_without_nccl)
  message(FATAL_ERROR "DDP_WITH_NCCL is ON, but ${ddp_without_nccl}. Mend that, or leave the option out")
endif()
if(NOT DEFINED DDP_WITH_NCCL AND ddp_without_nccl)
  message(STATUS "NCCL: left out, ${ddp_without_nccl}")
  set(ddp_nccl_default OFF)
else()
  set(ddp_nccl_default ON)
endif()
option(DDP_WITH_NCCL "Build the NCCL backend: needs a CUDA build of LibTorch and the headers of CUDA and NCCL"
       ${ddp_nccl_default})
if(DDP_WITH_NCCL)
  message(STATUS "NCCL: built in, with the header of NCCL ${NCCL_VERSION} in ${NCCL_INCLUDE_DIR}")
  include(ddp_cuda_kernels)
else()
  set(DDP_CUDA_KERNELS OFF)
endif()
