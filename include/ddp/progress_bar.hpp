#pragma once
/// progress_bar.hpp: one line on rank 0's terminal: how far, how fast, how long still.

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace ddp {

class ProcessGroup;

/// The bar's text, for instance "  45% [#########...........] 422/938 81.2/s 0:06 left", at most 79 columns.
/// `elapsed` counts from the start of the work; rate and remaining time are averages since then.
std::string progress_line(std::size_t done, std::size_t total, std::chrono::duration<double> elapsed);

struct ProgressBarOptions {
  int descriptor = 2;  ///< of the terminal to draw on
  /// A bar that changed is not drawn again earlier: ten times a second is smooth and costs nothing.
  std::chrono::milliseconds interval{100};
};

/// Rank 0 draws it, if standard error is a terminal; everywhere else all calls do nothing. Between drawings the
/// cursor stands at the start of the line, so that a line of the log replaces the bar, which appears again below.
/// Threads: one.
class ProgressBar {
 public:
  /// `total` is the number of steps that advance() will count, for instance loader->batches().
  ProgressBar(std::size_t total, const ProcessGroup& group, const ProgressBarOptions& options = {});
  /// Without a group.
  ProgressBar(std::size_t total, int rank, const ProgressBarOptions& options = {});
  /// finish()
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(std::size_t steps = 1);
  /// Draws the last state and goes to the next line; later calls do nothing.
  void finish() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  void draw(std::string_view line_end) noexcept;

  std::size_t total_;
  ProgressBarOptions options_;
  bool drawing_;
  std::size_t done_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_ = {};  ///< time of the last drawing; the epoch before the first
};

}  // namespace ddp
