#include "train/checkpoint/file_job.hpp"

#include <stdexcept>
#include <utility>

#include "ddp/log.hpp"
#include "train/checkpoint/error_text.hpp"
#include "train/checkpoint/file.hpp"

namespace ddp::checkpoint {

void write_file(const FileJob::File& file) {
  NewFile written(file.path);
  write_pt(file.root, {.is_sealed = true, .module = &file.module}, [&](std::string_view bytes) { written.write(bytes); });
  written.finish();
  if (file.is_best) written.also_as(with_infix(file.path, "best"));
  written.replace(file.keep_last);
  log::info("checkpoint: saved {}", file.path.string());
}

FileJob::~FileJob() {
  if (const auto error = error_of([this] { wait(); })) log::error("checkpoint: {}; the file is as it was before", *error);
}

void FileJob::start(File file) {
  file_ = std::move(file);
  thread_ = std::make_unique<ServiceThread>("ddp-checkpoint", [this](int) { error_ = error_of([&] { write_file(file_); }); });
}

void FileJob::wait() {
  thread_.reset();
  file_ = {};
  if (const auto error = std::exchange(error_, std::nullopt)) throw std::runtime_error(*error);
}

}  // namespace ddp::checkpoint
