# Kernels of our own, where an nvcc is there. They are compiled into a fat binary, which becomes a byte array in the
# library and is loaded by the driver: so neither CMake's CUDA language nor a CUDA runtime beside LibTorch's is needed.
#
# TORCH_CUDA_ARCH_LIST, a variable of CMake or the environment in torch's syntax ("8.0;9.0+PTX"), names the
# architectures; unset, they are all major ones that nvcc knows. Sets DDP_CUDA_KERNELS.

file(GLOB ddp_wheel_nvcc ${DDP_TORCH_ROOT}/../nvidia/*/bin)
find_program(DDP_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR} ${ddp_wheel_nvcc}
             PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(DDP_NVCC)

# Sets `flags` to nvcc's for one entry of the list: 9.0, 9.0a, 9.0+PTX.
function(ddp_nvcc_flags_of entry flags)
  if(NOT entry MATCHES "^([0-9]+)\\.([0-9])([af]?)(\\+PTX)?$")
    message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST: \"${entry}\" is no architecture; they are written as 8.0, 9.0a, 9.0+PTX")
  endif()
  set(number ${CMAKE_MATCH_1}${CMAKE_MATCH_2}${CMAKE_MATCH_3})
  set(result "-gencode=arch=compute_${number},code=sm_${number}")
  if(CMAKE_MATCH_4)
    list(APPEND result "-gencode=arch=compute_${number},code=compute_${number}")
  endif()
  set(${flags} ${result} PARENT_SCOPE)
endfunction()

# Sets `flags` to nvcc's for TORCH_CUDA_ARCH_LIST, whose names of generations are torch's.
function(ddp_nvcc_architectures flags)
  set(list "$ENV{TORCH_CUDA_ARCH_LIST}")
  if(TORCH_CUDA_ARCH_LIST)
    set(list "${TORCH_CUDA_ARCH_LIST}")
  endif()
  string(REGEX REPLACE "[ ,]+" ";" list "${list}")
  foreach(generation "Volta=7.0+PTX" "Turing=7.5+PTX" "Ampere=8.0;8.6+PTX" "Ada=8.9+PTX" "Hopper=9.0+PTX"
                     "Blackwell=10.0;12.0+PTX")
    string(REPLACE "=" ";" generation "${generation}")
    list(POP_FRONT generation name)
    list(TRANSFORM list REPLACE "^${name}$" "${generation}")
  endforeach()
  if(NOT list OR list MATCHES "^(All|Common|Auto)$")
    set(${flags} -arch=all-major PARENT_SCOPE)  # and the newest one's PTX
    return()
  endif()
  set(result)
  foreach(entry IN LISTS list)
    ddp_nvcc_flags_of("${entry}" of_entry)
    list(APPEND result ${of_entry})
  endforeach()
  set(${flags} ${result} PARENT_SCOPE)
endfunction()

# Sets `missing` to why nvcc cannot make a fat binary, or to nothing. One that is found may be of no use: its compiler
# may be too new for it, or parts of it not there.
function(ddp_try_nvcc missing)
  set(${missing} "" PARENT_SCOPE)
  if(NOT DDP_NVCC)
    set(${missing} "no nvcc was found (CUDA_HOME, PATH)" PARENT_SCOPE)
    return()
  endif()
  set(source ${PROJECT_BINARY_DIR}/try_nvcc.cu)
  file(WRITE ${source} "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cstdint>\n__global__ void nothing() {}\n")
  execute_process(COMMAND ${DDP_NVCC_COMMAND} -o ${PROJECT_BINARY_DIR}/try_nvcc.fatbin ${source}
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    string(STRIP "${output}" output)
    set(${missing} "${DDP_NVCC} does not compile for it:\n${output}\n" PARENT_SCOPE)
  endif()
endfunction()

# Adds to `target` the array `symbol` (with `symbol`_bytes) of what nvcc makes of `source`.
function(ddp_embed_kernel target source symbol)
  get_filename_component(name ${source} NAME_WE)
  set(binary ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  set(array ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin.cpp)
  add_custom_command(OUTPUT ${binary} COMMENT "nvcc ${source}"
    COMMAND ${DDP_NVCC_COMMAND} -I${PROJECT_SOURCE_DIR}/src -MD -MF ${binary}.d -MT ${binary} -o ${binary}
            ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${source} DEPFILE ${binary}.d VERBATIM)
  add_custom_command(OUTPUT ${array}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${binary} -DOUTPUT=${array} -DSYMBOL=${symbol}
            -P ${PROJECT_SOURCE_DIR}/cmake/embed_file.cmake
    DEPENDS ${binary} ${PROJECT_SOURCE_DIR}/cmake/embed_file.cmake VERBATIM)
  set_source_files_properties(${array} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE ${array})
endfunction()

set(ddp_without_kernels)
if(NOT DEFINED DDP_CUDA_KERNELS OR DDP_CUDA_KERNELS)
  ddp_nvcc_architectures(ddp_architectures)
  # The host's compiler only preprocesses, so one that nvcc does not know serves.
  set(DDP_NVCC_COMMAND ${DDP_NVCC} -fatbin -O3 -std=c++17 -ccbin ${CMAKE_CXX_COMPILER} -allow-unsupported-compiler
                       ${ddp_architectures})
  ddp_try_nvcc(ddp_without_kernels)
endif()
if(DDP_CUDA_KERNELS AND ddp_without_kernels)
  message(FATAL_ERROR "DDP_CUDA_KERNELS is ON, but ${ddp_without_kernels}")
endif()
set(ddp_kernels_default ON)
if(NOT DEFINED DDP_CUDA_KERNELS AND ddp_without_kernels)
  message(STATUS "CUDA kernels: left out, LibTorch's own operators do the same; ${ddp_without_kernels}")
  set(ddp_kernels_default OFF)
endif()
option(DDP_CUDA_KERNELS "Compile kernels of the library's own, with nvcc" ${ddp_kernels_default})
if(DDP_CUDA_KERNELS)
  string(REPLACE ";" " " ddp_architectures "${ddp_architectures}")
  message(STATUS "CUDA kernels: built in, by ${DDP_NVCC} for ${ddp_architectures}")
elseif(NOT ddp_without_kernels)
  message(STATUS "CUDA kernels: switched off (DDP_CUDA_KERNELS); LibTorch's own operators do the same")
endif()
