#include "train/checkpoint_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace ddp::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSeal = "ddp checkpoint 1 checksum ";  // 1: version of the file's layout
constexpr std::size_t kDigits = 16;
constexpr std::size_t kSealBytes = kSeal.size() + kDigits + 1;

[[noreturn]] void fail(const fs::path& path, const char* what, int error) {
  throw std::runtime_error(path.string() + ' ' + what + ": " + std::generic_category().message(error));
}

// FNV-1a (Fowler, Noll, Vo) over words of 8 bytes instead of bytes: each step is a bijection, so that no damage
// inside one word goes unnoticed. It guards against accidents, not against intent.
std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325U ^ bytes.size();
  for (std::size_t i = 0; i < bytes.size(); i += sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof word, bytes.size() - i));
    hash = (hash ^ word) * 0x100000001b3U;
  }
  return hash;
}

std::string seal_of(std::string_view archive) {
  std::array<char, kDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(checksum(archive)));
  return std::string(kSeal) + digits.data() + '\n';
}

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int operator*() const { return descriptor_; }
  /// 0, or -1 and errno.
  int close() { return ::close(std::exchange(descriptor_, -1)); }

 private:
  int descriptor_;
};

// Beyond the file-size limit write() raises SIGXFSZ, which would end the process: here it is an error like a full disk.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlocked() {
    const timespec now{};
    if (!::sigismember(&before_, SIGXFSZ)) ::sigtimedwait(&signal_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
};

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void write_new(const fs::path& path, std::string_view bytes) {
  const FileSizeSignalBlocked blocked;
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (*file < 0) fail(path, "cannot be created", errno);
  while (!bytes.empty()) {
    const ssize_t count = ::write(*file, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) fail(path, "cannot be written", errno);
    if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::fsync(*file) != 0) fail(path, "cannot be brought to the disk", errno);
  if (file.close() != 0) fail(path, "cannot be closed", errno);
}

// The rename itself is on the disk once its folder is. Some network file systems refuse to do that for a folder.
void sync_folder(const fs::path& folder) {
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (*descriptor < 0 || (::fsync(*descriptor) != 0 && errno != EINVAL))
    fail(folder, "cannot be brought to the disk", errno);
}

}  // namespace

std::string seal(std::string archive) {
  // The last two bytes of a zip archive are the length of its comment.
  archive.replace(archive.size() - 2, 2, {static_cast<char>(kSealBytes), '\0'});
  return archive += seal_of(archive);
}

void verify_seal(std::string_view bytes, const fs::path& path) {
  const auto archive_bytes = bytes.size() - std::min(bytes.size(), kSealBytes);
  const auto found = bytes.substr(archive_bytes);
  if (found.substr(0, kSeal.size()) != kSeal)
    throw std::runtime_error(path.string() + " was not written by ddp::Checkpoint, or its end is missing");
  if (found != seal_of(bytes.substr(0, archive_bytes)))
    throw std::runtime_error(path.string() + " is damaged: its checksum is wrong");
}

std::optional<std::string> read(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (*file < 0 && errno == ENOENT) {
    if (::access(folder_of(path).c_str(), W_OK | X_OK) == 0) return std::nullopt;
    fail(path, "does not exist and could not be saved", errno);
  }
  struct stat status{};
  if (*file < 0 || ::fstat(*file, &status) != 0) fail(path, "cannot be read", errno);
  if (!S_ISREG(status.st_mode)) throw std::runtime_error(path.string() + " is not a file");
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(*file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno != EINTR) fail(path, "cannot be read", errno);
    if (count == 0) bytes.resize(done);
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  return bytes;
}

void write(const fs::path& path, std::string_view bytes) {
  // rename() would put the file in place of a device or a pipe.
  if (std::error_code none; fs::exists(path, none) && !fs::is_regular_file(path, none))
    throw std::runtime_error(path.string() + " is not a file");
  auto unfinished = path;
  unfinished += ".tmp";
  try {
    write_new(unfinished, bytes);
    if (::rename(unfinished.c_str(), path.c_str()) != 0) fail(path, "cannot be replaced", errno);
  } catch (...) {
    ::unlink(unfinished.c_str());
    throw;
  }
  sync_folder(folder_of(path));
}

}  // namespace ddp::checkpoint
