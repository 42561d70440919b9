#pragma once
/// file_job.hpp: writes a checkpoint's file on rank 0, now or on a thread beside the training.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/service_thread.hpp"
#include "ddp/checkpoint.hpp"
#include "train/checkpoint/pt_file.hpp"

namespace ddp::checkpoint {

/// Threads: one; the file's is its own. Lifetime: the destructor waits for the file, and logs what went wrong with it.
class FileJob {
 public:
  struct File {
    std::filesystem::path path;
    int keep_last = 1;
    bool is_best = false;
    Progress progress{};  ///< for the log
    Value root;
    ModuleTree module;
  };

  FileJob() = default;
  ~FileJob();
  FileJob(const FileJob&) = delete;
  FileJob& operator=(const FileJob&) = delete;

  /// Returns once the file is on the disk. Errors: std::exception; the old file is as it was then.
  void write(const File& file);
  /// Begins with a file; the one before has been waited for.
  void start(File file);
  /// Returns once what start() began is on the disk. Errors: as write(), once
  void wait();

 private:
  File file_;
  std::optional<std::string> error_;
  bool has_told_ = false;  ///< that torch::load() cannot read the file
  std::unique_ptr<ServiceThread> thread_;
};

}  // namespace ddp::checkpoint
