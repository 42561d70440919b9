#include "report/line_plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>

#include "report/axis_ticks.hpp"
#include "report/canvas.hpp"

namespace ddp::report {
namespace {

constexpr Color kPaper{255, 255, 255}, kInk{40, 40, 40}, kGrey{110, 110, 110}, kGrid{228, 228, 228};
// Okabe and Ito's, which those tell apart who see few colours, too.
constexpr std::array<Color, 7> kColors{Color{0, 114, 178}, {213, 94, 0},   {0, 158, 115}, {204, 121, 167},
                                       {230, 159, 0},      {86, 180, 233}, {90, 90, 90}};
constexpr float kThickness = 2;
constexpr int kMargin = 18, kGap = 10, kRow = Canvas::kTextHeight + kGap, kSwatch = 26;

Color color_of(std::size_t curve) { return kColors[curve % kColors.size()]; }

/// Numbers so large that their differences overflow are no points either.
bool is_drawn(double x, double y) {
  constexpr double largest = 1e300;
  return std::abs(x) <= largest && std::abs(y) <= largest;
}

/// The numbers that an axis shows.
class Range {
 public:
  void include(double value) {
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  /// With room around: `share` of the length at each end, and so much that it has a length.
  Range padded(double share) const {
    if (low_ > high_) return {0, 1};
    const double largest = std::max(std::abs(low_), std::abs(high_)), length = high_ - low_;
    if (largest < 1e-290) return {-1, 1};
    const double room = length > 1e-9 * largest ? share * length : 0.1 * largest;
    return {low_ - room, high_ + room};
  }
  Range() = default;

  double low() const { return low_; }
  double high() const { return high_; }
  float share_of(double value) const { return static_cast<float>((value - low_) / (high_ - low_)); }

 private:
  Range(double low, double high) : low_(low), high_(high) {}
  double low_ = std::numeric_limits<double>::infinity(), high_ = -low_;
};

/// The lowest and the highest stand for many points that share a column of pixels.
class Thinned {
 public:
  void add(const Point& point) {
    const bool goes_on = std::isfinite(point.x) && count_ > 0 && std::floor(point.x) == std::floor(points_.back().x);
    count_ = !std::isfinite(point.x) ? 0 : goes_on ? count_ + 1 : 1;
    points_.push_back(point);
    constexpr std::size_t kept = 4;  // first, lowest, highest, last
    if (count_ <= kept) return;
    const auto column = points_.end() - static_cast<std::ptrdiff_t>(kept + 1);
    const auto [lowest, highest] = std::minmax_element(column + 1, column + 4, by_height);
    // Of the inner three, the one between the others goes.
    for (auto inner = column + 1; inner != column + 4; ++inner) {
      if (inner == lowest || inner == highest) continue;
      points_.erase(inner);
      break;
    }
    count_ = kept;
  }
  const std::vector<Point>& points() const { return points_; }

 private:
  static bool by_height(const Point& a, const Point& b) { return a.y < b.y; }
  std::vector<Point> points_;
  std::size_t count_ = 0;  ///< of the last column's points
};

struct Axes {
  Range x, y;
  Rectangle area;

  int column(double value) const {
    return area.left + static_cast<int>(std::lround(x.share_of(value) * static_cast<float>(area.width - 1)));
  }
  int row(double value) const {
    return area.top + static_cast<int>(std::lround((1 - y.share_of(value)) * static_cast<float>(area.height - 1)));
  }
  Point place(double at, double value) const {
    if (!is_drawn(at, value)) return {NAN, NAN};
    return {.x = static_cast<float>(area.left) + 0.5F + x.share_of(at) * static_cast<float>(area.width - 1),
            .y = static_cast<float>(area.top) + 0.5F + (1 - y.share_of(value)) * static_cast<float>(area.height - 1)};
  }
};

/// A text that is cut off, with dots, where it is wider than the room for it.
std::string fitting(std::string text, int width) {
  if (Canvas::text_width(text) <= width) return text;
  while (!text.empty() && Canvas::text_width(text + "...") > width) text.pop_back();
  return text + "...";
}

/// The name of the panel, and a swatch and a name for each curve, in as many rows as they need.
class Legend {
 public:
  Legend(const Panel& panel, int left, int right) {
    const int width = right - left;
    name_ = fitting(panel.name, width / 2);
    left_ = left;
    int row = 0, at = left + Canvas::text_width(name_) + 3 * kGap;
    for (const auto& curve : panel.curves) {
      auto name = fitting(curve.name, width - kSwatch - 2 * kGap);
      const int needs = kSwatch + kGap + Canvas::text_width(name);
      if (at + needs > right) {
        ++row;
        at = left;
      }
      entries_.push_back({.left = at, .row = row, .name = std::move(name)});
      at += needs + 2 * kGap;
    }
    rows_ = row + 1;
  }

  int height() const { return rows_ * kRow; }
  void draw(Canvas& canvas, int top) const {
    canvas.text(left_, top, name_, kInk);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto& entry = entries_[i];
      const int row_top = top + entry.row * kRow;
      canvas.fill({.left = entry.left, .top = row_top + Canvas::kTextHeight / 2 - 2, .width = kSwatch, .height = 4},
                  color_of(i));
      canvas.text(entry.left + kSwatch + kGap, row_top, entry.name, kInk);
    }
  }

 private:
  struct Entry {
    int left = 0, row = 0;
    std::string name;
  };
  std::string name_;
  int left_ = 0, rows_ = 1;
  std::vector<Entry> entries_;
};

Range x_range(const LinePlot& plot) {
  Range range;
  for (const auto& panel : plot.panels) {
    for (const auto& curve : panel.curves) {
      for (std::size_t i = 0; i < curve.x.size(); ++i) {
        if (is_drawn(curve.x[i], curve.y[i])) range.include(curve.x[i]);
      }
    }
  }
  return range.padded(0.01);
}

Range y_range(const Panel& panel) {
  Range range;
  for (const auto& curve : panel.curves) {
    for (std::size_t i = 0; i < curve.y.size(); ++i) {
      if (is_drawn(curve.x[i], curve.y[i])) range.include(curve.y[i]);
    }
  }
  return range.padded(0.06);
}

std::vector<Tick> y_ticks(const Range& range, int height) {
  return axis_ticks(range.low(), range.high(), std::max(2, 2 * height / (3 * kRow)));
}

int widest(const std::vector<Tick>& ticks) {
  int width = 0;
  for (const auto& tick : ticks) width = std::max(width, Canvas::text_width(tick.label));
  return width;
}

/// As many as fit side by side with their labels.
std::vector<Tick> x_ticks(const Range& range, int width) {
  for (int most = 10; most > 2; --most) {
    auto ticks = axis_ticks(range.low(), range.high(), most);
    if (static_cast<int>(ticks.size()) * (widest(ticks) + 2 * kGap) <= width) return ticks;
  }
  return axis_ticks(range.low(), range.high(), 2);
}

void draw_grid(Canvas& canvas, const Axes& axes, const std::vector<Tick>& columns, const std::vector<Tick>& rows) {
  const auto& area = axes.area;
  for (const auto& tick : columns) {
    canvas.fill({.left = axes.column(tick.value), .top = area.top, .width = 1, .height = area.height}, kGrid);
  }
  for (const auto& tick : rows) {
    const int row = axes.row(tick.value);
    canvas.fill({.left = area.left, .top = row, .width = area.width, .height = 1}, kGrid);
    canvas.text(area.left - kGap - Canvas::text_width(tick.label), row - Canvas::kTextHeight / 2, tick.label, kGrey);
  }
  canvas.fill({.left = area.left, .top = area.top, .width = 1, .height = area.height}, kGrey);
  canvas.fill({.left = area.left, .top = area.top + area.height, .width = area.width, .height = 1}, kGrey);
}

void draw_curve(Canvas& canvas, const Axes& axes, const Curve& curve, Color color) {
  Thinned thinned;
  for (std::size_t i = 0; i < curve.x.size(); ++i) thinned.add(axes.place(curve.x[i], curve.y[i]));
  canvas.line(thinned.points(), axes.area, color, kThickness);
}

/// Below the last panel: the numbers of the x axis, and its name.
void draw_x_labels(Canvas& canvas, const Axes& axes, const std::vector<Tick>& ticks, const std::string& name, int top) {
  const auto width = static_cast<int>(canvas.image().width);
  for (const auto& tick : ticks) {
    const int text = Canvas::text_width(tick.label);
    canvas.text(std::clamp(axes.column(tick.value) - text / 2, 0, std::max(0, width - text)), top, tick.label, kGrey);
  }
  const auto shown = fitting(name, axes.area.width);
  canvas.text(axes.area.left + (axes.area.width - Canvas::text_width(shown)) / 2, top + kRow, shown, kGrey);
}

}  // namespace

Image drawn(const LinePlot& plot) {
  const int plot_height = std::max(plot.panel_height - 2 * kRow, 40), right = plot.width - kMargin;
  int labels = 0, height = 2 * kMargin + kRow;
  for (const auto& panel : plot.panels) labels = std::max(labels, widest(y_ticks(y_range(panel), plot_height)));
  const int left = kMargin + labels + kGap;
  std::vector<Legend> legends;
  for (const auto& panel : plot.panels) {
    legends.emplace_back(panel, left, right);
    height += legends.back().height() + plot_height + kRow;
  }
  Canvas canvas(plot.width, height + 2 * kRow, kPaper);
  const auto title = fitting(plot.title, plot.width - 2 * kMargin);
  canvas.text((plot.width - Canvas::text_width(title)) / 2, kMargin, title, kInk);

  Axes axes{
      .x = x_range(plot), .y = {}, .area = {.left = left, .top = 0, .width = right - left, .height = plot_height}};
  const auto columns = x_ticks(axes.x, axes.area.width);
  int top = kMargin + kRow + kGap;
  for (std::size_t i = 0; i < plot.panels.size(); ++i) {
    const auto& panel = plot.panels[i];
    legends[i].draw(canvas, top);
    axes.area.top = top + legends[i].height();
    axes.y = y_range(panel);
    draw_grid(canvas, axes, columns, y_ticks(axes.y, plot_height));
    for (std::size_t k = 0; k < panel.curves.size(); ++k) draw_curve(canvas, axes, panel.curves[k], color_of(k));
    top = axes.area.top + plot_height + kRow;
  }
  if (!plot.panels.empty()) draw_x_labels(canvas, axes, columns, plot.x_label, top - kRow + kGap);
  return canvas.image();
}

}  // namespace ddp::report
