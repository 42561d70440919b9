#pragma once
/// replaced_file.hpp: a file that appears under its name complete or not at all, also where a signal ends the process.

#include <array>
#include <climits>

#include "base/descriptor.hpp"

namespace ddp {

/// Written beside its final place, under a name that nobody can foresee, readable for its owner alone. A link that
/// somebody has put in its place is replaced, never followed.
///
/// All members are safe in a signal's handler. Errors: an errno, 0 for none. Lifetime: without commit() nothing stays.
class ReplacedFile {
 public:
  /// `path` must outlive this.
  explicit ReplacedFile(const char* path) noexcept : path_(path) {}
  ~ReplacedFile();
  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;

  int open() noexcept;
  int descriptor() const noexcept { return file_.get(); }
  /// Gives it its name, in place of a former file of this name.
  int commit() noexcept;

 private:
  int name_temporary() noexcept;

  const char* const path_;
  Descriptor file_;
  std::array<char, PATH_MAX> temporary_{};
};

}  // namespace ddp
