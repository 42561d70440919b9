#include "ddp/summary_writer.hpp"

#include <ATen/Functions.h>

#include <set>
#include <span>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "ddp/error.hpp"
#include "ddp/log.hpp"
#include "ddp/mean.hpp"
#include "ddp/process_group.hpp"
#include "report/event.hpp"
#include "report/event_file.hpp"
#include "report/histogram.hpp"
#include "report/image.hpp"
#include "report/scalars_csv.hpp"
#include "report/stb.hpp"

namespace ddp {
namespace {

using report::Stamp;
using Clock = std::chrono::steady_clock;

Stamp stamp_of(std::int64_t step, SummaryWriter::Time time) {
  return {.wall_time = std::chrono::duration<double>(time.time_since_epoch()).count(), .step = step};
}

void check(bool is_right, std::string_view tag, const char* what) {
  if (tag.empty()) throw std::invalid_argument("SummaryWriter: the tag is empty");
  if (!is_right) throw std::invalid_argument("SummaryWriter: \"" + std::string(tag) + "\": " + what);
}

/// Piece by piece, since the values may be a whole model's.
report::Histogram histogram_of(const at::Tensor& values) {
  constexpr std::int64_t piece = 1 << 20;
  const auto flat = values.detach().reshape({-1});
  report::Histogram histogram;
  for (std::int64_t begin = 0; begin < flat.numel(); begin += piece) {
    const auto part =
        flat.narrow(0, begin, std::min(piece, flat.numel() - begin)).to(at::kCPU, at::kDouble).contiguous();
    histogram.add({part.const_data_ptr<double>(), static_cast<std::size_t>(part.numel())});
  }
  return histogram;
}

/// Pixel by pixel, rounded to the nearest of 256 values.
report::Image image_of(const at::Tensor& image) {
  auto pixels = image.detach().cpu();
  if (pixels.is_floating_point())
    pixels = pixels.to(at::kFloat).nan_to_num().clamp(0, 1).mul(255).round().to(at::kByte);
  pixels = pixels.permute({1, 2, 0}).contiguous();
  const auto* const bytes = pixels.const_data_ptr<std::uint8_t>();
  return {.height = pixels.size(0),
          .width = pixels.size(1),
          .channels = pixels.size(2),
          .pixels = {bytes, bytes + pixels.numel()}};
}

}  // namespace

struct SummaryWriter::Impl {
  Impl(std::filesystem::path into, ProcessGroup& ranks, SummaryWriterOptions chosen)
      : group(ranks.shared_from_this()), options(std::move(chosen)), folder(std::move(into)) {
    if (options.all_ranks) folder /= "rank" + std::to_string(group->rank());
    if (group->rank() == 0 || options.all_ranks) open();
  }

  void open();
  void put(const std::string& event);
  void flush();
  void warn_of(const report::Histogram& histogram, std::string_view tag);

  std::shared_ptr<ProcessGroup> group;
  SummaryWriterOptions options;
  std::filesystem::path folder;
  std::unique_ptr<report::EventFile> events;  ///< null where this rank does not write
  std::unique_ptr<report::ScalarsCsv> csv;
  Clock::time_point flushed = Clock::now();
  std::set<std::string, std::less<>> warned;  ///< tags of histograms
};

void SummaryWriter::Impl::open() {
  try {
    std::error_code not_made;
    std::filesystem::create_directories(folder, not_made);
    if (not_made) throw std::system_error(not_made, "the folder \"" + folder.string() + "\" cannot be made");
    events = std::make_unique<report::EventFile>(folder.string(), options.filename_suffix);
    if (options.csv) csv = std::make_unique<report::ScalarsCsv>((folder / "scalars.csv").string());
  } catch (const std::runtime_error& error) {
    throw ConfigError(group->origin(), "SummaryWriter", error.what(), "give a folder where this process may write");
  }
  const auto time = stamp_of(0, now()).wall_time;
  events->append(report::version_event(time));
  if (options.purge_step) events->append(report::restart_event({.wall_time = time, .step = *options.purge_step}));
  flush();
}

void SummaryWriter::Impl::put(const std::string& event) {
  events->append(event);
  if (Clock::now() - flushed >= options.flush_interval) flush();
}

void SummaryWriter::Impl::flush() {
  events->flush();
  if (csv) csv->flush();
  flushed = Clock::now();
}

void SummaryWriter::Impl::warn_of(const report::Histogram& histogram, std::string_view tag) {
  if (histogram.finite() > 0 && histogram.not_finite() == 0) return;
  if (!warned.emplace(tag).second) return;
  if (histogram.finite() > 0) {
    log::all.warn("the histogram \"{}\" leaves out {} of {} elements, which are infinite or not a number", tag,
                  histogram.not_finite(), histogram.not_finite() + histogram.finite());
  } else if (histogram.not_finite() > 0) {
    log::all.warn("the histogram \"{}\" is left out: all its {} elements are infinite or not a number", tag,
                  histogram.not_finite());
  } else {
    log::all.warn("the histogram \"{}\" is left out: the tensor has no elements", tag);
  }
}

SummaryWriter::SummaryWriter(std::filesystem::path folder, ProcessGroup& group, const SummaryWriterOptions& options)
    : impl_(std::make_unique<Impl>(std::move(folder), group, options)) {}
SummaryWriter::~SummaryWriter() = default;
SummaryWriter::SummaryWriter(SummaryWriter&&) noexcept = default;
SummaryWriter& SummaryWriter::operator=(SummaryWriter&&) noexcept = default;

void SummaryWriter::add_scalar(std::string_view tag, double value, std::int64_t step, Time time) {
  check(true, tag, "");
  if (!writes()) return;
  const auto stamp = stamp_of(step, time);
  if (impl_->csv) impl_->csv->append(stamp, tag, value);
  impl_->put(report::scalar_event(stamp, tag, value));
}

void SummaryWriter::add_mean(std::string_view tag, double value, std::int64_t step, Time time) {
  add_scalar(tag, mean(value, *impl_->group), step, time);
}

void SummaryWriter::add_mean(std::string_view tag, const at::Tensor& values, std::int64_t step, Time time) {
  add_scalar(tag, mean(values, *impl_->group), step, time);
}

void SummaryWriter::add_histogram(std::string_view tag, const at::Tensor& values, std::int64_t step, Time time) {
  check(values.defined(), tag, "the tensor is undefined (a parameter without a gradient?)");
  check(!values.is_complex(), tag, "a histogram needs real numbers");
  if (!writes()) return;
  const auto histogram = histogram_of(values.is_sparse() ? values.detach().coalesce().values() : values);
  impl_->warn_of(histogram, tag);
  if (histogram.finite() > 0) impl_->put(report::histogram_event(stamp_of(step, time), tag, histogram));
}

void SummaryWriter::add_image(std::string_view tag, const at::Tensor& image, std::int64_t step, Time time) {
  check(image.defined() && image.dim() == 3 && (image.size(0) == 1 || image.size(0) == 3) && image.numel() > 0, tag,
        "an image is a tensor [1, height, width] or [3, height, width]");
  check(image.is_floating_point() || image.scalar_type() == at::kByte, tag,
        "an image's values are uint8, or floating-point numbers from 0 to 1");
  if (!writes()) return;
  const auto pixels = image_of(image);
  impl_->put(report::image_event(stamp_of(step, time), tag,
                                 {.height = pixels.height,
                                  .width = pixels.width,
                                  .channels = pixels.channels,
                                  .png = report::encoded_png(pixels)}));
}

void SummaryWriter::add_text(std::string_view tag, std::string_view text, std::int64_t step, Time time) {
  check(true, tag, "");
  if (writes()) impl_->put(report::text_event(stamp_of(step, time), tag, text));
}

void SummaryWriter::flush() {
  if (writes()) impl_->flush();
}

bool SummaryWriter::writes() const noexcept { return impl_->events != nullptr; }

std::filesystem::path SummaryWriter::file() const {
  return writes() ? std::filesystem::path(impl_->events->path()) : std::filesystem::path();
}

}  // namespace ddp
