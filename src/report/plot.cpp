#include "ddp/plot.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/replaced_file.hpp"
#include "base/write_signals.hpp"
#include "ddp/process_group.hpp"
#include "report/line_plot.hpp"
#include "report/stb.hpp"
#include "report/write_trouble.hpp"

namespace ddp {
namespace {

/// Finds what has this name, or makes it at the end.
template <class Named>
Named& named(std::vector<Named>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Named& one) { return one.name == name; });
  if (found != all.end()) return *found;
  all.emplace_back().name = name;
  return all.back();
}

/// Returns an errno, 0 for none.
int write_all(int file, std::string_view bytes) {
  const WriteSignalsHeld no_signal;
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
    if (written < 0 && errno != EINTR) return errno;
  }
  return 0;
}

int replace(const std::filesystem::path& path, std::string_view bytes) {
  std::error_code not_made;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), not_made);
  if (not_made) return not_made.value();
  ReplacedFile file(path.c_str());
  if (const int error = file.open(); error != 0) return error;
  ::fchmod(file.descriptor(), 0644);
  if (const int error = write_all(file.descriptor(), bytes); error != 0) return error;
  return file.commit();
}

}  // namespace

struct Plot::Impl {
  report::LinePlot plot;
  report::WriteTrouble trouble;
};

Plot::Plot(std::string title, const ProcessGroup& group, const PlotOptions& options)
    : Plot(std::move(title), group.rank(), options) {}

Plot::Plot(std::string title, int rank, const PlotOptions& options) {
  if (options.width < 200 || options.panel_height < 100) {
    throw std::invalid_argument("Plot: a picture is at least 200 pixels wide, and a panel at least 100 high");
  }
  if (rank != 0) return;
  impl_ = std::make_unique<Impl>();
  impl_->plot = {.title = std::move(title),
                 .x_label = options.x_label,
                 .panels = {},
                 .width = options.width,
                 .panel_height = options.panel_height};
}

Plot::~Plot() = default;
Plot::Plot(Plot&&) noexcept = default;
Plot& Plot::operator=(Plot&&) noexcept = default;

void Plot::add(std::string_view panel, std::string_view curve, double x, double y) {
  if (!impl_) return;
  auto& points = named(named(impl_->plot.panels, panel).curves, curve);
  points.x.push_back(x);
  points.y.push_back(y);
}

bool Plot::save(const std::filesystem::path& path) const {
  if (!impl_) return true;
  const int error = replace(path, report::encoded_png(report::drawn(impl_->plot)));
  impl_->trouble.note(path.string(), error);
  return error == 0;
}

}  // namespace ddp
