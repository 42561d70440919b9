#include "base/replaced_file.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace ddp {
namespace {

constexpr int kTries = 4;  // 64 random bits are not met twice; a file system may refuse for a moment

}  // namespace

ReplacedFile::~ReplacedFile() {
  if (file_.get() >= 0) ::unlink(temporary_.data());
}

int ReplacedFile::name_temporary() noexcept {
  const std::string_view path(path_);
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return errno;
  std::array<char, 17> suffix{'.'};
  for (std::size_t i = 1; i < suffix.size(); ++i, random >>= 4U) suffix[i] = "0123456789abcdef"[random & 15U];
  if (path.size() + suffix.size() >= temporary_.size()) return ENAMETOOLONG;
  path.copy(temporary_.data(), path.size());
  std::memcpy(temporary_.data() + path.size(), suffix.data(), suffix.size());
  temporary_[path.size() + suffix.size()] = '\0';
  return 0;
}

int ReplacedFile::open() noexcept {
  int error = 0;
  for (int i = 0; i < kTries; ++i) {
    error = name_temporary();
    if (error != 0) return error;
    file_ = Descriptor(::open(temporary_.data(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file_.get() >= 0) return 0;
    error = errno;
    if (error != EEXIST && error != EINTR) break;
  }
  return error;
}

int ReplacedFile::commit() noexcept {
  if (::rename(temporary_.data(), path_) != 0) return errno;
  file_.close();
  return 0;
}

}  // namespace ddp
