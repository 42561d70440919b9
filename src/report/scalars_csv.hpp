#pragma once
/// scalars_csv.hpp: scalars as lines of a CSV file, for those who read them without TensorBoard.

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/log_file.hpp"
#include "report/event.hpp"
#include "report/write_trouble.hpp"

namespace ddp::report {

/// The header `wall_time,step,tag,value`, then a line for each scalar; an existing file is continued.
///
/// Threads: one. A forked child's copy writes nothing.
class ScalarsCsv {
 public:
  /// Errors: std::runtime_error, with the path and the reason.
  explicit ScalarsCsv(const std::string& path);

  /// flush()
  ~ScalarsCsv() { flush(); }
  ScalarsCsv(const ScalarsCsv&) = delete;
  ScalarsCsv& operator=(const ScalarsCsv&) = delete;

  void append(const Stamp& stamp, std::string_view tag, double value);
  /// Whole lines by one write(2).
  void flush() noexcept;

 private:
  pid_t owner_;
  log::LogFile file_;
  std::string pending_;
  WriteTrouble trouble_;
};

}  // namespace ddp::report
