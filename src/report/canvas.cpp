#include "report/canvas.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "report/stb.hpp"

namespace ddp::report {
namespace {

constexpr int kPixelsOfStroke = Canvas::kTextHeight / 7;

bool is_number(const Point& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

/// How far `pixel` is from the segment between two points.
float distance(const Point& pixel, const Point& from, const Point& to) {
  const float along_x = to.x - from.x, along_y = to.y - from.y;
  const float length_squared = along_x * along_x + along_y * along_y;
  const float part = ((pixel.x - from.x) * along_x + (pixel.y - from.y) * along_y) / std::max(length_squared, 1e-12F);
  const float nearest = std::clamp(part, 0.0F, 1.0F);
  return std::hypot(pixel.x - from.x - nearest * along_x, pixel.y - from.y - nearest * along_y);
}

/// How much of each pixel of an area a line covers, however often it crosses itself.
class Coverage {
 public:
  explicit Coverage(const Rectangle& area)
      : area_(area), shares_(static_cast<std::size_t>(area.width) * static_cast<std::size_t>(area.height)) {}

  void add_segment(const Point& from, const Point& to, float thickness) {
    const float reach = thickness / 2 + 0.5F;
    const auto [left, right] = span_of(from.x, to.x, reach, area_.left, area_.width);
    const auto [top, bottom] = span_of(from.y, to.y, reach, area_.top, area_.height);
    for (int y = top; y < bottom; ++y) {
      for (int x = left; x < right; ++x) {
        const Point middle{.x = static_cast<float>(x) + 0.5F, .y = static_cast<float>(y) + 0.5F};
        auto& share = shares_[index(x, y)];
        share = std::max(share, std::clamp(reach - distance(middle, from, to), 0.0F, 1.0F));
      }
    }
  }
  float at(int x, int y) const { return shares_[index(x, y)]; }

 private:
  /// The pixels, within the area, that a segment may touch in one direction.
  static std::array<int, 2> span_of(float a, float b, float reach, int begin, int length) {
    const auto low = static_cast<float>(begin), high = static_cast<float>(begin + length);
    return {static_cast<int>(std::clamp(std::floor(std::min(a, b) - reach), low, high)),
            static_cast<int>(std::clamp(std::ceil(std::max(a, b) + reach), low, high))};
  }
  std::size_t index(int x, int y) const {
    return static_cast<std::size_t>(y - area_.top) * static_cast<std::size_t>(area_.width) +
           static_cast<std::size_t>(x - area_.left);
  }

  Rectangle area_;
  std::vector<float> shares_;
};

}  // namespace

Canvas::Canvas(int width, int height, Color background) {
  image_.width = width;
  image_.height = height;
  image_.pixels.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  fill({.left = 0, .top = 0, .width = width, .height = height}, background);
}

void Canvas::fill(const Rectangle& area, Color color) {
  for (int y = area.top; y < area.top + area.height; ++y) {
    for (int x = area.left; x < area.left + area.width; ++x) blend(x, y, color, 1);
  }
}

void Canvas::line(std::span<const Point> points, const Rectangle& area, Color color, float thickness) {
  Coverage coverage(area);
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!is_number(points[i])) continue;
    const bool goes_on = i + 1 < points.size() && is_number(points[i + 1]);
    const bool began = i > 0 && is_number(points[i - 1]);
    if (goes_on) coverage.add_segment(points[i], points[i + 1], thickness);
    if (!goes_on && !began) coverage.add_segment(points[i], points[i], 3 * thickness);
  }
  for (int y = area.top; y < area.top + area.height; ++y) {
    for (int x = area.left; x < area.left + area.width; ++x) blend(x, y, color, coverage.at(x, y));
  }
}

void Canvas::text(int left, int top, std::string_view line, Color color) {
  for (const auto& stroke : strokes_of(line)) {
    const auto pixels = [](float units) { return static_cast<int>(units) * kPixelsOfStroke; };
    fill({.left = left + pixels(stroke.left),
          .top = top + pixels(stroke.top),
          .width = pixels(stroke.right - stroke.left),
          .height = pixels(stroke.bottom - stroke.top)},
         color);
  }
}

int Canvas::text_width(std::string_view line) { return static_cast<int>(report::text_width(line)) * kPixelsOfStroke; }

void Canvas::blend(int x, int y, Color color, float opacity) {
  if (x < 0 || y < 0 || x >= image_.width || y >= image_.height || opacity <= 0) return;
  auto* const pixel = &image_.pixels[static_cast<std::size_t>((y * image_.width + x) * 3)];
  const std::array<std::uint8_t, 3> wanted{color.red, color.green, color.blue};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const float mixed = static_cast<float>(pixel[i]) * (1 - opacity) + static_cast<float>(wanted[i]) * opacity;
    pixel[i] = static_cast<std::uint8_t>(std::lround(mixed));
  }
}

}  // namespace ddp::report
