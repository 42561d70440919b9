# What the project needs from outside, each found once, each missing piece named with its Debian package.

# Sets `variable` to the directory that holds `header`.
function(ddp_find_header variable header package)
  find_path(${variable} ${header} ${ARGN})
  if(NOT ${variable})
    message(FATAL_ERROR "ddp needs <${header}>, which is not installed: apt-get install ${package}\n"
                        "(or point -D${variable}= at the folder that holds it)")
  endif()
  mark_as_advanced(${variable})
endfunction()

macro(ddp_find_package name package)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "ddp needs ${name}, which was not found: ${package}")
  endif()
endmacro()

find_package(Threads REQUIRED)
ddp_find_package(Torch "pip install torch, then give its folder: -DCMAKE_PREFIX_PATH=\
$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)'); ./tests/run.sh does this by itself")

# Gloo: declarations only. Its code lives inside LibTorch; linking libgloo too would make two copies of it.
ddp_find_header(DDP_GLOO_INCLUDE_DIR gloo/config.h libgloo-dev)

# spdlog, header-only and with its own fmt: seen by one source file, needed by nobody who links the library.
ddp_find_header(DDP_SPDLOG_INCLUDE_DIR spdlog/spdlog.h libspdlog-dev)
ddp_find_header(DDP_SPDLOG_FMT_INCLUDE_DIR fmt/core.h libfmt-dev PATHS ${DDP_SPDLOG_INCLUDE_DIR} NO_DEFAULT_PATH)

if(DDP_BUILD_LAUNCHER)
  ddp_find_package(CLI11 "apt-get install libcli11-dev" CONFIG)
endif()
if(DDP_BUILD_TESTS)
  ddp_find_package(GTest "apt-get install libgtest-dev")
endif()

# The fmt that LibTorch ships, and nothing else of LibTorch: for sources that only format text.
set(DDP_TORCH_FMT_DIR ${PROJECT_BINARY_DIR}/torch_fmt)
list(GET TORCH_INCLUDE_DIRS 0 torch_include_dir)
if(NOT EXISTS ${torch_include_dir}/fmt/base.h)
  message(FATAL_ERROR "LibTorch at ${torch_include_dir} has no fmt/base.h: ddp needs LibTorch 2.11 or newer")
endif()
file(MAKE_DIRECTORY ${DDP_TORCH_FMT_DIR})
file(CREATE_LINK ${torch_include_dir}/fmt ${DDP_TORCH_FMT_DIR}/fmt SYMBOLIC)

if(DDP_CCACHE)
  find_program(DDP_CCACHE_PROGRAM ccache)
  if(DDP_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                                    ${DDP_CCACHE_PROGRAM})
  endif()
endif()
