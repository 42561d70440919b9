#pragma once
/// file_limit.hpp: how many files the launcher may open.

#include <sys/resource.h>

namespace ddp::launch {

/// Many ranks need many pipes: the launcher takes all that it may have, its ranks what it was given.
class FileLimit {
 public:
  FileLimit() {
    if (::getrlimit(RLIMIT_NOFILE, &before_) != 0) return;
    const rlimit most{before_.rlim_max, before_.rlim_max};
    is_raised_ = ::setrlimit(RLIMIT_NOFILE, &most) == 0;
  }
  /// In a forked child.
  void restore() const {
    if (is_raised_) ::setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  bool is_raised_ = false;
};

}  // namespace ddp::launch
