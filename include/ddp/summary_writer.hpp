#pragma once
/// summary_writer.hpp: what TensorBoard shows of a run, and scalars as CSV. Rank 0 writes.
///
///     ddp::SummaryWriter writer("runs/mnist", *group);
///     writer.add_scalar("loss", ddp::mean(loss, *group), step);   // reduced first, on all ranks
///     writer.add_mean("loss", loss, step);                        // the same
///
/// `tensorboard --logdir runs` shows it.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace ddp {

class ProcessGroup;

struct SummaryWriterOptions {
  bool csv = false;  ///< scalars also go to scalars.csv in the folder: wall_time,step,tag,value
  /// Every rank writes, to FOLDER/rank0, FOLDER/rank1, ...; unset, rank 0 alone, to FOLDER.
  bool all_ranks = false;
  /// A run that goes on with this step: TensorBoard forgets what an earlier writer had from it on.
  std::optional<std::int64_t> purge_step = std::nullopt;
  std::string filename_suffix = {};
  /// What was added is in the file so long after it at the latest, if something is added then; zero: at once.
  std::chrono::milliseconds flush_interval{2000};
};

/// On ranks that do not write all calls are there and only check their arguments. But for add_mean() none communicates,
/// so that they may stand behind a check of the rank.
///
/// Threads: one. Tensors: of any device, with or without a gradient; they are not changed.
/// Errors: std::invalid_argument for an empty tag and for tensors that do not fit, on every rank. A full disk is none:
/// a line of the log says once that something is missing, and later values go in again where there is room.
class SummaryWriter {
 public:
  using Time = std::chrono::system_clock::time_point;
  static Time now() { return std::chrono::system_clock::now(); }

  /// Makes the folder, and in it a new file beside those of other writers.
  /// Errors: ConfigError on a rank that cannot write there; the others learn of it as of any exception.
  SummaryWriter(std::filesystem::path folder, ProcessGroup& group, const SummaryWriterOptions& options = {});
  /// flush()
  ~SummaryWriter();
  SummaryWriter(SummaryWriter&&) noexcept;
  SummaryWriter& operator=(SummaryWriter&&) noexcept;

  /// TensorBoard has it in float32, the CSV in float64. Tags with a slash are shown in groups: "loss/train".
  void add_scalar(std::string_view tag, double value, std::int64_t step, Time time = now());
  /// Collective. add_scalar() of ddp::mean(value, group).
  void add_mean(std::string_view tag, double value, std::int64_t step, Time time = now());
  void add_mean(std::string_view tag, const at::Tensor& values, std::int64_t step, Time time = now());
  /// How the elements are spread, in the buckets of Python's SummaryWriter. Infinities and NaN are left out, which a
  /// warning says once for a tag; without any finite element nothing is written.
  /// Tensors: any real dtype and shape; of a sparse one its values.
  void add_histogram(std::string_view tag, const at::Tensor& values, std::int64_t step, Time time = now());
  /// Tensors: [1 or 3, height, width], grey or RGB, of uint8, or of floats from 0 to 1; those beyond are clamped.
  void add_image(std::string_view tag, const at::Tensor& image, std::int64_t step, Time time = now());
  /// Markdown.
  void add_text(std::string_view tag, std::string_view text, std::int64_t step, Time time = now());
  /// What was added before is in the files when this returns, whatever becomes of the process.
  void flush();

  bool writes() const noexcept;  ///< this rank does
  /// Of this rank's event file; empty where it does not write.
  std::filesystem::path file() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
