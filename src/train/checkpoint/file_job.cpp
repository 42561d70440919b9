#include "train/checkpoint/file_job.hpp"

#include <stdexcept>
#include <utility>

#include "ddp/log.hpp"
#include "train/checkpoint/error_text.hpp"
#include "train/checkpoint/file.hpp"

namespace ddp::checkpoint {

void FileJob::write(const File& file) {
  const auto path = resolved(file.path);
  NewFile written(path);
  const bool is_for_libtorch = write_pt(file.root, {.is_sealed = true, .module = &file.module},
                                        [&](std::string_view bytes) { written.write(bytes); });
  written.finish();
  if (file.is_best) written.copy_to(with_infix(path, "best"));
  written.replace(file.keep_last);
  log::info("checkpoint: saved {}, epoch {}, step {}", file.path.string(), file.progress.epoch, file.progress.step);
  if (!is_for_libtorch && !std::exchange(has_told_, true))
    log::info(
        "checkpoint: torch::load() cannot read {} into the plain module, for its names or dtypes; Python and "
        "ddp can",
        file.path.string());
}

FileJob::~FileJob() {
  if (const auto error = error_of([this] { wait(); }))
    log::error("checkpoint: {}; the file is as it was before", *error);
}

void FileJob::start(File file) {
  file_ = std::move(file);
  thread_ = std::make_unique<ServiceThread>("ddp-checkpoint", [this](int) {
    error_ = error_of([this] { write(file_); });
    file_ = {};  // the copies' memory, which nobody else needs
  });
}

void FileJob::wait() {
  thread_.reset();
  if (const auto error = std::exchange(error_, std::nullopt)) throw std::runtime_error(*error);
}

}  // namespace ddp::checkpoint
