#include "report/stb.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#include <stb/stb_easy_font.h>
#include <stb/stb_image_write.h>

namespace ddp::report {
namespace {

constexpr std::size_t kMostLetters = 500;  // more than any picture has room for

/// With one letter for each of the text's; stb reads beyond its tables for others than these.
std::string printable(std::string_view text) {
  std::string result;
  for (const char letter : text.substr(0, kMostLetters)) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte >= 0x80 && byte < 0xC0) continue;  // inside a character of UTF-8
    result += byte >= 32 && byte < 127 ? letter : '?';
  }
  return result;
}

}  // namespace

std::string encoded_png(const Image& image) {
  std::string file;
  const auto append = [](void* to, void* bytes, int count) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), static_cast<std::size_t>(count));
  };
  const auto channels = static_cast<int>(image.channels);
  const auto width = static_cast<int>(image.width), height = static_cast<int>(image.height);
  if (stbi_write_png_to_func(append, &file, width, height, channels, image.pixels.data(), width * channels) == 0) {
    throw std::bad_alloc();
  }
  return file;
}

std::vector<Stroke> strokes_of(std::string_view text) {
  constexpr std::size_t bytes_of_corner = 16, corners = 4;  // x, y, z as floats and a colour, for each
  auto letters = printable(text);
  std::vector<char> quads((letters.size() + 1) * 64 * corners * bytes_of_corner);  // no letter has so many strokes
  const int count = stb_easy_font_print(0, 0, letters.data(), nullptr, quads.data(), static_cast<int>(quads.size()));
  std::vector<Stroke> strokes;
  for (int i = 0; i < count; ++i) {
    const char* const quad = quads.data() + static_cast<std::size_t>(i) * corners * bytes_of_corner;
    Stroke stroke;
    std::memcpy(&stroke.left, quad, 2 * sizeof(float));
    std::memcpy(&stroke.right, quad + 2 * bytes_of_corner, 2 * sizeof(float));  // the opposite corner
    strokes.push_back(stroke);
  }
  return strokes;
}

float text_width(std::string_view text) {
  auto letters = printable(text);
  return static_cast<float>(stb_easy_font_width(letters.data()));
}

}  // namespace ddp::report
