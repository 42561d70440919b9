#pragma once
/// event_file.hpp: a file of TensorBoard's events.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "report/write_trouble.hpp"

namespace ddp::report {

/// Holds whole records at any time, also where the disk is full: what was written in part is taken back, and the next
/// records may go in again.
///
/// Threads: one. A forked child's copy writes nothing.
class EventFile {
 public:
  /// Makes a new file in `folder`, which exists: `events.out.tfevents.TIME.HOST.PID.NUMBER` and `suffix`, whatever
  /// other processes make there. Errors: std::system_error.
  EventFile(const std::string& folder, const std::string& suffix);
  /// flush()
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Takes a message of event.hpp; much of it is written at once.
  void append(std::string_view event);
  /// What append() has taken is the system's when this returns, by one write(2).
  void flush() noexcept;

  const std::string& path() const { return path_; }

 private:
  int write_pending() noexcept;

  pid_t owner_;
  std::string path_;
  Descriptor file_;
  std::string pending_;
  off_t whole_ = 0;  ///< bytes of whole records in the file
  WriteTrouble trouble_;
};

}  // namespace ddp::report
