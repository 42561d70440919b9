#include "ddp/progress_bar.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ddp/process_group.hpp"

namespace ddp {
namespace {

std::string hours_minutes_seconds(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  }
  return text;
}

}  // namespace

std::string progress_line(std::size_t done, std::size_t total, std::chrono::duration<double> elapsed) {
  constexpr std::size_t width = 20;  // the line stays shorter than one of the log, which is to replace it
  const auto share = total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto filled = static_cast<std::size_t>(share * width);
  char text[80];
  std::snprintf(text, sizeof text, "%4d%% [%s%s] %zu/%zu", static_cast<int>(share * 100),
                std::string(filled, '#').c_str(), std::string(width - filled, '.').c_str(), done, total);
  std::string line = text;
  if (done == 0 || elapsed.count() <= 0) return line;
  const auto rate = static_cast<double>(done) / elapsed.count();
  std::snprintf(text, sizeof text, rate < 100 ? " %.3g/s" : " %.0f/s", rate);
  line += text;
  if (done < total)
    line += " " + hours_minutes_seconds(static_cast<double>(total - done) / rate) + " left";
  else
    line += " in " + hours_minutes_seconds(elapsed.count());
  return line.substr(0, 79);
}

ProgressBar::ProgressBar(std::size_t total, const ProcessGroup& group, const ProgressBarOptions& options)
    : ProgressBar(total, group.rank(), options) {}

ProgressBar::ProgressBar(std::size_t total, int rank, const ProgressBarOptions& options)
    : total_(total), options_(options), drawing_(rank == 0 && ::isatty(options.descriptor) == 1) {}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::advance(std::size_t steps) {
  done_ += steps;
  if (drawing_ && (drawn_ == Clock::time_point{} || Clock::now() - drawn_ >= options_.interval)) draw("\r");
}

void ProgressBar::finish() noexcept {
  if (drawing_) draw("\n");
  drawing_ = false;
}

void ProgressBar::draw(std::string_view line_end) noexcept {
  drawn_ = Clock::now();
  // "\x1b[K" clears what an older, longer bar left on the right. One write, so that no log line comes between.
  const auto text = "\r" + progress_line(done_, total_, drawn_ - start_) + "\x1b[K" + std::string(line_end);
  // A terminal that is gone is no reason to end the training.
  if (::write(options_.descriptor, text.data(), text.size()) < 0) drawing_ = false;
}

}  // namespace ddp
