# Decides whether this build has the NCCL backend, and finds what its one source needs. No nvcc: that source is C++.
#
# It calls LibTorch's ProcessGroupNCCL, whose header includes some of CUDA's and NCCL's. Those of a wheel from pip lie
# beside torch, in nvidia/; what it lacks is in the packages nvidia-cuda-crt and nvidia-cuda-cccl of the wheel's version,
# or in a CUDA toolkit. Sets DDP_CUDA and DDP_CUDA_INCLUDE_DIRS.
include(CheckCXXSourceCompiles)

# Sets `missing` to what keeps the backend from being built, or to nothing.
function(ddp_find_cuda_headers missing)
  set(${missing} "" PARENT_SCOPE)
  if(NOT TARGET ddp::torch_cuda)
    set(${missing} "LibTorch at ${DDP_TORCH_ROOT} is no CUDA build" PARENT_SCOPE)
    return()
  endif()
  # nvidia/cu13/include; one folder a library in wheels of CUDA 12: nvidia/cublas/include, ...
  file(GLOB wheels ${DDP_TORCH_ROOT}/../nvidia/*/include ${DDP_TORCH_ROOT}/../nvidia/*/include/cccl)
  set(directories)
  foreach(header cuda_runtime_api.h crt/host_config.h nv/target cublas_v2.h cusparse.h cusolverDn.h nccl.h)
    string(MAKE_C_IDENTIFIER "DDP_CUDA_DIR_OF_${header}" variable)
    find_path(${variable} ${header} HINTS ${wheels}
              PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES include include/cccl)
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

if(NOT DEFINED DDP_CUDA OR DDP_CUDA)
  ddp_find_cuda_headers(DDP_CUDA_MISSING)
endif()
if(DDP_CUDA AND DDP_CUDA_MISSING)
  message(FATAL_ERROR "DDP_CUDA is ON, but ${DDP_CUDA_MISSING}")
endif()
if(NOT DEFINED DDP_CUDA AND DDP_CUDA_MISSING)
  message(STATUS "The NCCL backend is left out: ${DDP_CUDA_MISSING}")
  set(DDP_CUDA_DEFAULT OFF)
else()
  set(DDP_CUDA_DEFAULT ON)
endif()
option(DDP_CUDA "Build the NCCL backend: needs a CUDA build of LibTorch and the headers of CUDA and NCCL"
       ${DDP_CUDA_DEFAULT})
