# Finds NCCL's header: NCCL_ROOT and NCCL_HOME (variables of CMake or the environment) first, then beside LibTorch, where
# pip's packages lie, then a CUDA toolkit and the system.
#
# Sets NCCL_FOUND, NCCL_INCLUDE_DIR and NCCL_VERSION. There is no library to link: LibTorch brings NCCL's code.
set(nccl_given ${NCCL_ROOT} $ENV{NCCL_ROOT} ${NCCL_HOME} $ENV{NCCL_HOME})
file(GLOB nccl_beside_torch ${DDP_TORCH_ROOT}/../nvidia/nccl/include ${DDP_TORCH_ROOT}/../nvidia/*/include)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_given} ${nccl_beside_torch} ${CUDAToolkit_INCLUDE_DIRS}
          PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES include)
mark_as_advanced(NCCL_INCLUDE_DIR)

set(NCCL_VERSION)
if(NCCL_INCLUDE_DIR)
  set(nccl_parts)
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_line REGEX "^#define NCCL_${part} +[0-9]+" LIMIT_COUNT 1)
    if(nccl_line MATCHES "([0-9]+)$")
      list(APPEND nccl_parts ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(JOIN nccl_parts . NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR NCCL_VERSION VERSION_VAR NCCL_VERSION)
