// What a plot looks like is for eyes; here is what can be counted. DDP_TEST_PICTURES=FOLDER keeps the pictures.
#include "report/line_plot.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "report/axis_ticks.hpp"
#include "report/stb.hpp"
#include "support/temp_folder.hpp"

namespace ddp::report {
namespace {

using Pixel = std::array<std::uint8_t, 3>;
using Labels = std::vector<std::string>;

constexpr Pixel kFirstCurve{0, 114, 178}, kSecondCurve{213, 94, 0};

Pixel pixel(const Image& image, std::int64_t x, std::int64_t y) {
  const auto at = static_cast<std::size_t>((y * image.width + x) * 3);
  return {image.pixels[at], image.pixels[at + 1], image.pixels[at + 2]};
}

std::int64_t pixels_of(const Image& image, const Pixel& color) {
  std::int64_t found = 0;
  for (std::int64_t y = 0; y < image.height; ++y) {
    for (std::int64_t x = 0; x < image.width; ++x) found += pixel(image, x, y) == color ? 1 : 0;
  }
  return found;
}

/// Those of the legend's swatch, which is there without a point, too.
std::int64_t swatch() {
  return pixels_of(drawn({.title = "", .x_label = "", .panels = {{"p", {{"c", {}, {}}}}}}), kFirstCurve);
}

Image look(const std::string& name, const LinePlot& plot) {
  auto image = drawn(plot);
  if (const auto* folder = std::getenv("DDP_TEST_PICTURES")) {
    ::ddp::testing::overwrite(std::string(folder) + "/" + name + ".png", encoded_png(image));
  }
  return image;
}

LinePlot one_curve(std::vector<double> x, std::vector<double> y) {
  return {.title = "A title", .x_label = "step", .panels = {{"loss", {{"training", std::move(x), std::move(y)}}}}};
}

Labels labels(double low, double high, int most) {
  Labels texts;
  for (const auto& tick : axis_ticks(low, high, most)) texts.push_back(tick.label);
  return texts;
}

TEST(AxisTicks, AreRoundAndWithinTheAxis) {
  EXPECT_EQ(labels(0, 1, 6), (Labels{"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"}));
  EXPECT_EQ(labels(-0.3, 2.2, 6), (Labels{"0.0", "0.5", "1.0", "1.5", "2.0"}));
  EXPECT_EQ(labels(0, 938, 10), (Labels{"0", "100", "200", "300", "400", "500", "600", "700", "800", "900"}));
  EXPECT_EQ(labels(0.9812, 0.9841, 4), (Labels{"0.982", "0.983", "0.984"}));
  EXPECT_EQ(labels(-5, 5, 3), (Labels{"-5", "0", "5"}));
}

TEST(AxisTicks, OfLargeAndSmallNumbersAreShort) {
  EXPECT_EQ(labels(0, 3e12, 4), (Labels{"0", "1e+12", "2e+12", "3e+12"}));
  EXPECT_EQ(labels(0, 4e-9, 5), (Labels{"0", "1e-09", "2e-09", "3e-09", "4e-09"}));
  EXPECT_EQ(labels(1e9, 1e9 + 20, 3), (Labels{"1e+09", "1.00000001e+09", "1.00000002e+09"}));
}

TEST(AxisTicks, AreNeverTooManyNorEqual) {
  for (const double low : {-1e300, -1e5, -1.0, 0.0, 1e-200, 1.0, 12345.678}) {
    for (const double length : {1e-6, 0.001, 0.37, 1.0, 7.0, 1e9, 1e300}) {
      if (low + length == low) continue;
      for (const int most : {2, 5, 10}) {
        const auto texts = labels(low, low + length, most);
        EXPECT_LE(texts.size(), static_cast<std::size_t>(most));
        EXPECT_EQ(std::adjacent_find(texts.begin(), texts.end()), texts.end()) << low << " + " << length;
      }
    }
  }
}

TEST(EncodedPng, IsAPngOfThisSize) {
  const auto file = encoded_png({.height = 2, .width = 300, .channels = 1, .pixels = std::vector<std::uint8_t>(600)});
  EXPECT_EQ(file.substr(0, 24), std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x01\x2c\0\0\0\x02", 24));
  EXPECT_TRUE(file.ends_with(std::string("\0\0\0\0IEND\xae\x42\x60\x82", 12)));
}

TEST(LinePlot, DrawsCurvesInPanelsWithALegend) {
  std::vector<double> steps, loss, smooth, accuracy;
  for (int i = 0; i <= 938; i += 2) {
    steps.push_back(i);
    loss.push_back(2.3 * std::exp(-i / 200.0) + 0.3 + 0.1 * std::sin(i * 1.7));
    smooth.push_back(2.3 * std::exp(-i / 200.0) + 0.3);
    accuracy.push_back(0.9 - 0.8 * std::exp(-i / 150.0));
  }
  const auto image = look("panels", {.title = "Fashion-MNIST, 2 ranks",
                                     .x_label = "step",
                                     .panels = {{"loss", {{"training", steps, loss}, {"smoothed", steps, smooth}}},
                                                {"accuracy", {{"test images", steps, accuracy}}}}});
  EXPECT_GT(pixels_of(image, kFirstCurve), 2 * swatch() + 1000);
  EXPECT_GT(pixels_of(image, kSecondCurve), swatch() + 500);
  EXPECT_EQ(image.width, 900);
}

TEST(LinePlot, SurvivesWhatIsNoCurve) {
  const double nan = NAN, infinite = std::numeric_limits<double>::infinity(), huge = 1e308;
  look("nothing", {.title = "Nothing", .x_label = "step", .panels = {}});
  EXPECT_EQ(pixels_of(look("no_points", one_curve({}, {})), kFirstCurve), swatch());
  EXPECT_GT(pixels_of(look("one_point", one_curve({5}, {3})), kFirstCurve), swatch() + 10);
  EXPECT_GT(pixels_of(look("same", one_curve({1, 2, 3}, {7, 7, 7})), kFirstCurve), swatch() + 500);
  EXPECT_GT(pixels_of(look("zero", one_curve({0, 1}, {0, 0})), kFirstCurve), swatch() + 10);
  EXPECT_EQ(pixels_of(look("no_numbers", one_curve({0, 1, nan}, {nan, infinite, 1})), kFirstCurve), swatch());
  EXPECT_GT(pixels_of(look("gaps", one_curve({0, 1, 2, 3, 4, 5}, {1, 2, nan, 2, infinite, 4})), kFirstCurve),
            swatch() + 100);
  EXPECT_GT(pixels_of(look("huge", one_curve({0, 1, 2}, {-huge, huge, 1})), kFirstCurve), swatch() + 10);
  EXPECT_GT(pixels_of(look("wide", one_curve({0, 1}, {-1e300, 1e300})), kFirstCurve), swatch() + 100);
  EXPECT_GT(pixels_of(look("tiny", one_curve({0, 1}, {0, 5e-310})), kFirstCurve), swatch() + 100);
}

TEST(LinePlot, KeepsThePeaksOfAMillionPoints) {
  std::vector<double> x, y;
  for (int i = 0; i < 1'000'000; ++i) {
    x.push_back(i);
    y.push_back(i == 500'123 ? 100 : i % 7);
  }
  const auto image = look("million", one_curve(x, y));
  std::int64_t rows = 0;  // in which the peak's line is
  for (std::int64_t row = 0; row < image.height; ++row) {
    for (std::int64_t column = image.width / 2; column < image.width / 2 + 60; ++column) {
      if (pixel(image, column, row)[0] < 120 && pixel(image, column, row)[2] > 150) {
        ++rows;
        break;
      }
    }
  }
  EXPECT_GT(rows, 150);
}

TEST(LinePlot, HasRoomForLongNamesAndManyCurves) {
  LinePlot plot{
      .title = std::string(300, 'T'), .x_label = "Schritte \xc3\xbc", .panels = {{std::string(200, 'p'), {}}}};
  plot.width = 400;
  for (int i = 0; i < 12; ++i) {
    plot.panels[0].curves.push_back(
        {"curve " + std::string(static_cast<std::size_t>(i * 3), 'n'), {0, 1}, {0, i * 1e5}});
  }
  const auto image = look("names", plot);
  EXPECT_EQ(image.width, 400);
  EXPECT_GT(image.height, 400) << "the legend has rows of its own";
}

}  // namespace
}  // namespace ddp::report
