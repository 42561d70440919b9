#include "start/descriptors.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace ddp::start {

void open_missing_stdio() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) redirect_to_null(fd);
  }
}

void redirect_to_null(int fd) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null == fd) {
    keep_over_exec(fd);
  } else if (null >= 0) {
    ::dup2(null, fd);
    ::close(null);
  }
}

void close_on_exec_from(int first) {
  if (::close_range(static_cast<unsigned>(first), ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Linux before 5.11
  std::vector<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    open.push_back(std::atoi(entry.path().filename().c_str()));
  }
  for (const int fd : open) {
    if (fd >= first) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

void close_others(std::vector<int> kept) {
  std::ranges::sort(kept);
  int next = STDERR_FILENO + 1;
  for (const int one : kept) {
    if (one < next) continue;
    for (int fd = next; fd < one; ++fd) ::close(fd);
    next = one + 1;
  }
  ::closefrom(next);
}

void keep_over_exec(int fd) { ::fcntl(fd, F_SETFD, 0); }

}  // namespace ddp::start
