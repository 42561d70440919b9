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

# Loops that rely on the compiler's vectoriser, in every build type: NAME_base.cpp, and on x86-64 NAME_avx2.cpp and
# NAME_avx512.cpp. Which of them runs is decided by the processor at run time, base/instruction_set.hpp. Contraction
# would make the bits depend on the instruction set.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(DDP_WITH_AVX ON)
endif()
function(ddp_vector_loops layer name)
  set(flags -O3 -ffp-contract=off -fno-trapping-math -fno-math-errno)
  target_sources(ddp_${layer} PRIVATE ${name}_base.cpp)
  set_source_files_properties(${name}_base.cpp PROPERTIES COMPILE_OPTIONS "${flags}")
  if(DDP_WITH_AVX)
    target_sources(ddp_${layer} PRIVATE ${name}_avx2.cpp ${name}_avx512.cpp)
    target_compile_definitions(ddp_${layer} PRIVATE DDP_WITH_AVX)
    set_source_files_properties(${name}_avx2.cpp PROPERTIES COMPILE_OPTIONS "${flags};-mavx2;-mf16c")
    set_source_files_properties(${name}_avx512.cpp PROPERTIES COMPILE_OPTIONS
      "${flags};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mf16c")
  endif()
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
