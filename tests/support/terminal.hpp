#pragma once
/// terminal.hpp: a terminal that a test can write on and read.

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace ddp::testing {

/// A pseudo-terminal.
class Terminal {
 public:
  Terminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) throw std::runtime_error("no pty");
    writer_ = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    if (writer_ < 0) throw std::runtime_error("no pty");
  }
  ~Terminal() {
    if (writer_ >= 0) ::close(writer_);
    ::close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int descriptor() const { return writer_; }

  /// All that was written; nothing can be written any more.
  std::string text() {
    ::close(writer_);
    writer_ = -1;
    std::string text;
    char buffer[4096];
    for (ssize_t count = 0; (count = ::read(master_, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(count));
    }
    return text;
  }

 private:
  int master_;
  int writer_ = -1;
};

}  // namespace ddp::testing
