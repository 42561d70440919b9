# How this project's targets are made.

set(DDP_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms of g++ 12 inside std::string's operator+ (its bug 105651).
  list(APPEND DDP_WARNINGS -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
endif()

# What all of them have in common.
function(ddp_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # -fPIC for executables too: the precompiled header fits only files compiled with the same flags.
  target_compile_options(${target} PRIVATE ${DDP_WARNINGS} -fPIC)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
endfunction()

# One precompiled header for every target that sees LibTorch.
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/pch.cpp CONTENT "")
add_library(ddp_pch OBJECT ${PROJECT_BINARY_DIR}/pch.cpp)
ddp_flags(ddp_pch)
target_link_libraries(ddp_pch PRIVATE ddp::torch Threads::Threads)
target_precompile_headers(ddp_pch PRIVATE <torch/torch.h>)

# A target with LibTorch, or with NO_TORCH one that sees nothing of it but its fmt.
function(ddp_common target)
  cmake_parse_arguments(arg "NO_TORCH" "" "" ${ARGN})
  ddp_flags(${target})
  if(arg_NO_TORCH)
    target_include_directories(${target} SYSTEM PRIVATE ${DDP_TORCH_FMT_DIR})
    target_link_libraries(${target} PUBLIC Threads::Threads)
    ddp_tidy(${target})
  else()
    target_link_libraries(${target} PUBLIC ddp::torch Threads::Threads)
    target_precompile_headers(${target} REUSE_FROM ddp_pch)
  endif()
endfunction()

# clang-tidy while compiling, where DDP_CLANG_TIDY names it. Files with LibTorch would take minutes each.
function(ddp_tidy target)
  if(DDP_CLANG_TIDY)
    set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY "${DDP_CLANG_TIDY};--quiet")
  endif()
endfunction()

# A layer's objects: ddp_layer(comm SOURCES process_group.cpp ...), NO_TORCH as above.
function(ddp_layer name)
  cmake_parse_arguments(arg "NO_TORCH" "" "SOURCES" ${ARGN})
  add_library(ddp_${name} OBJECT ${arg_SOURCES})
  ddp_common(ddp_${name} ${ARGN})
endfunction()

# The one object that holds spdlog. It must not see LibTorch: the two bring different versions of fmt.
function(ddp_spdlog_layer name)
  cmake_parse_arguments(arg "" "" "SOURCES" ${ARGN})
  add_library(ddp_${name} OBJECT ${arg_SOURCES})
  ddp_flags(ddp_${name})
  ddp_tidy(ddp_${name})
  target_compile_definitions(ddp_${name} PRIVATE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
  target_include_directories(ddp_${name} SYSTEM PRIVATE ${DDP_SPDLOG_INCLUDE_DIR} ${DDP_SPDLOG_FMT_INCLUDE_DIR})
endfunction()

# A program as a user would write it: ddp_program(fashion_mnist SOURCES fashion_mnist.cpp)
function(ddp_program name)
  cmake_parse_arguments(arg "" "" "SOURCES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  ddp_common(${name})
  target_link_libraries(${name} PRIVATE ddp::ddp)
endfunction()

# The public headers, each of which all_verify_interface_header_sets compiles alone.
function(ddp_public_headers target)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/ddp/*.hpp)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers})
  target_compile_features(${target} PUBLIC cxx_std_20)
endfunction()
