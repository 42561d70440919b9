# What the project needs from outside, each found once, each missing piece named with its Debian package.

# Sets `variable` to the directory that holds `header`; more arguments go to find_path.
function(ddp_find_header variable header package)
  find_path(${variable} ${header} ${ARGN})
  if(NOT ${variable})
    message(FATAL_ERROR "ddp needs <${header}>, which was not found: apt-get install ${package}, "
                        "or give its folder as -D${variable}=")
  endif()
  mark_as_advanced(${variable})
endfunction()

macro(ddp_find_package name package)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "ddp needs ${name}, which was not found: apt-get install ${package}")
  endif()
endmacro()

find_package(Threads REQUIRED)

include(ddp_libtorch)
if(NOT TARGET ddp::torch)
  message(FATAL_ERROR "${DDP_TORCH_NOT_FOUND}\n./tests/run.sh and ./examples/quickstart.sh find or install it themselves.")
endif()

# The fmt that LibTorch ships, and nothing else of LibTorch: for sources that only format text.
set(DDP_TORCH_FMT_DIR ${PROJECT_BINARY_DIR}/torch_fmt)
file(MAKE_DIRECTORY ${DDP_TORCH_FMT_DIR})
file(CREATE_LINK ${DDP_TORCH_ROOT}/include/fmt ${DDP_TORCH_FMT_DIR}/fmt SYMBOLIC)

# Gloo: declarations only. Its code lives inside LibTorch; linking libgloo too would make two copies of it.
ddp_find_header(DDP_GLOO_INCLUDE_DIR gloo/config.h libgloo-dev)

include(ddp_cuda)

# spdlog, header-only and with its own fmt: seen by one source file, needed by nobody who links the library.
ddp_find_header(DDP_SPDLOG_INCLUDE_DIR spdlog/spdlog.h libspdlog-dev)
ddp_find_header(DDP_SPDLOG_FMT_INCLUDE_DIR fmt/core.h libfmt-dev PATHS ${DDP_SPDLOG_INCLUDE_DIR} NO_DEFAULT_PATH)

# stb, header-only: PNG files and letters for plots; seen by one source file, needed by nobody who links the library.
ddp_find_header(DDP_STB_INCLUDE_DIR stb/stb_image_write.h libstb-dev)

if(DDP_BUILD_LAUNCHER)
  ddp_find_package(CLI11 libcli11-dev CONFIG)
endif()
if(DDP_BUILD_TESTS)
  if(CMAKE_CROSSCOMPILING)  # Debian's library is for this machine's processor; its sources serve every one
    set(INSTALL_GTEST OFF)
    add_subdirectory(/usr/src/googletest/googletest googletest EXCLUDE_FROM_ALL SYSTEM)
  else()
    ddp_find_package(GTest libgtest-dev)
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

if(DDP_CCACHE)
  find_program(DDP_CCACHE_PROGRAM ccache)
  mark_as_advanced(DDP_CCACHE_PROGRAM)
  if(DDP_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                                    ${DDP_CCACHE_PROGRAM})
  endif()
endif()
