#pragma once
/// descriptors.hpp: an open file descriptor and its owner, and which ones a process hands on.

#include <unistd.h>

#include <utility>

namespace ddp::launch {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// Opens /dev/null for each of 0, 1, 2 that is closed, so that nothing else can land there.
void open_missing_stdio();

/// Makes `fd` /dev/null.
void redirect_to_null(int fd);

/// Every descriptor from `first` on will not survive exec.
void close_on_exec_from(int first);
/// Closes every descriptor from `first` on.
void close_from(int first);

/// `fd` will survive exec.
void keep_over_exec(int fd);

}  // namespace ddp::launch
