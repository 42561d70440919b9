#pragma once
/// line_plot.hpp: curves in panels, one above the other over the same x axis, as an image.

#include <string>
#include <vector>

#include "report/image.hpp"

namespace ddp::report {

struct Curve {
  std::string name;
  std::vector<double> x, y;  ///< as many of each; a point that is not finite is a gap
};

struct Panel {
  std::string name;
  std::vector<Curve> curves;
};

struct LinePlot {
  std::string title, x_label;
  std::vector<Panel> panels;
  int width = 900, panel_height = 280;  ///< of the whole image and of each panel, in pixels
};

Image drawn(const LinePlot& plot);

}  // namespace ddp::report
