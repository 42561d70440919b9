#pragma once
/// write_trouble.hpp: says once that a file cannot be written, since a run does not end for that.

#include <string>

namespace ddp::report {

/// Threads: one.
class WriteTrouble {
 public:
  /// A warning of this rank, at the first error; 0 is none.
  void note(const std::string& path, int error) noexcept;

 private:
  bool said_ = false;
};

}  // namespace ddp::report
