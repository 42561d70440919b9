#pragma once
/// image.hpp: pixels in memory.

#include <cstdint>
#include <vector>

namespace ddp::report {

struct Image {
  std::int64_t height = 0, width = 0;
  std::int64_t channels = 3;         ///< 1: grey, 3: RGB
  std::vector<std::uint8_t> pixels;  ///< [height, width, channels]
};

}  // namespace ddp::report
