#pragma once
/// plot.hpp: a run's curves as a picture, a PNG file that rank 0 writes.
///
///     ddp::Plot plot("Fashion-MNIST", *group);
///     plot.add("loss", "training", step, ddp::mean(loss, *group));
///     plot.add("accuracy", "test images", step, accuracy);
///     plot.save("run.png");

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace ddp {

class ProcessGroup;

struct PlotOptions {
  std::string x_label = "step";
  int width = 900;         ///< of the picture, in pixels; at least 200
  int panel_height = 280;  ///< of each panel with its legend; at least 100
};

/// On other ranks all calls do nothing; none communicates. A point takes 16 bytes until the end. The picture of a run
/// that was resumed begins where it was resumed; give it another name, or take the curve from the SummaryWriter's
/// files.
///
/// Threads: one.
class Plot {
 public:
  /// Errors: std::invalid_argument for a picture that is too small.
  Plot(std::string title, const ProcessGroup& group, const PlotOptions& options = {});
  /// Without a group.
  Plot(std::string title, int rank, const PlotOptions& options = {});
  ~Plot();
  Plot(Plot&&) noexcept;
  Plot& operator=(Plot&&) noexcept;

  /// A point of a curve, joined to the one that was added before. Panels lie one below the other, each with a y axis of
  /// its own over the same x; they and their curves come in the order of their first points. A point that is infinite
  /// or not a number is a gap in the curve.
  void add(std::string_view panel, std::string_view curve, double x, double y);
  /// Writes what there is so far; the file is replaced as a whole. Missing folders are made. False, after a warning,
  /// where the file cannot be written, since a run does not end for that; true on other ranks.
  bool save(const std::filesystem::path& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  ///< null on other ranks
};

}  // namespace ddp
