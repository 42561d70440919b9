#pragma once
/// canvas.hpp: drawing on an image: filled rectangles, smooth lines, text.

#include <cstdint>
#include <span>
#include <string_view>

#include "report/image.hpp"

namespace ddp::report {

struct Color {
  std::uint8_t red = 0, green = 0, blue = 0;
};

/// In pixels from the upper left corner; y grows downwards.
struct Point {
  float x = 0, y = 0;
};

struct Rectangle {
  int left = 0, top = 0, width = 0, height = 0;
};

/// What lies outside is cut off.
class Canvas {
 public:
  Canvas(int width, int height, Color background);

  void fill(const Rectangle& area, Color color);
  /// A line through the points that are numbers, within `area`; others are gaps, and a point between gaps is a dot.
  void line(std::span<const Point> points, const Rectangle& area, Color color, float thickness);
  /// One line of text, kTextHeight high.
  void text(int left, int top, std::string_view line, Color color);

  static constexpr int kTextHeight = 14;  ///< of a capital letter; 4 more go below for letters like g
  static int text_width(std::string_view line);

  const Image& image() const { return image_; }

 private:
  void blend(int x, int y, Color color, float opacity);

  Image image_;
};

}  // namespace ddp::report
