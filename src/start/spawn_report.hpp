#pragma once
/// spawn_report.hpp: what a rank tells the process that has spawned it, over a pipe.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"

namespace ddp::start {

/// The rank's end. A parent that is gone is no error.
class SpawnReport {
 public:
  /// Takes the pipe over; what the rank starts does not have it.
  explicit SpawnReport(int pipe);

  /// The call of spawn() was reached.
  void begun() const { write("B"); }
  /// The function has returned, and the rank has left its groups.
  void done() const { write("D"); }
  /// The function threw. The last that is reported.
  void threw(int exit_code, std::string_view type, std::string_view text) const;

 private:
  void write(std::string_view bytes) const;

  Descriptor pipe_;
};

/// The parent's end: what was heard so far.
class SpawnHeard {
 public:
  enum class Stage : std::uint8_t { started, begun, done, threw };

  void add(std::string_view bytes) { bytes_ += bytes; }

  Stage stage() const;
  /// Of an exception; as much of it as has come.
  int exit_code() const;
  std::string type() const { return field(1); }
  std::string text() const { return field(2); }

 private:
  std::string field(int number) const;

  std::string bytes_;
};

}  // namespace ddp::start
