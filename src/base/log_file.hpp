#pragma once
/// log_file.hpp: a file that grows by whole lines, whoever else appends to it.

#include <string>
#include <string_view>

#include "base/descriptor.hpp"

namespace ddp::log {

/// Threads: used by one at a time.
class LogFile {
 public:
  /// Makes missing folders, also where other ranks do so at the same time. Errors: std::runtime_error, with the path
  /// and the reason.
  explicit LogFile(std::string path);

  /// One write(2), unless the system takes only a part. Lines that fail are lost; later ones start on a line of their
  /// own. Returns an errno, 0 for none. Raises no signal.
  int append(std::string_view lines) noexcept;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Descriptor file_;
  bool torn_ = false;  ///< its last line has no end
};

}  // namespace ddp::log
