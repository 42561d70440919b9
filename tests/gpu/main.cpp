// Runs the tests that need a GPU; where this process sees none it says so and ends with 77, for nothing was tested.
#include <gtest/gtest.h>

#include <cstdio>

#include "gpu/gpus.hpp"

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  const bool only_lists = GTEST_FLAG_GET(list_tests);
  if (!only_lists && ddp::testing::visible_gpus() == 0) {
    std::printf("gpu_tests: no GPU is there: CUDA shows this process none, so no test was run\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}
