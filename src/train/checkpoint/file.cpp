#include "train/checkpoint/file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/write_signals.hpp"

namespace ddp::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSeal = "ddp checkpoint 1 checksum ";  // 1: version of the seal
constexpr std::size_t kDigits = 16;
constexpr std::size_t kSealBytes = kSeal.size() + kDigits + 1;
constexpr std::size_t kLengthBytes = 2;          // of a comment, at the end of an archive that has none
constexpr std::size_t kBufferBytes = 1U << 20U;  // small records come together in one write

[[noreturn]] void fail(const fs::path& path, const char* what, int error) {
  throw std::runtime_error(path.string() + ' ' + what + ": " + std::generic_category().message(error));
}

std::string seal_of(const Checksum& checksum) {
  std::array<char, kDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(checksum.result()));
  return std::string(kSeal) + digits.data() + '\n';
}

std::shared_ptr<std::string> memory_for(const fs::path& path, std::size_t bytes) {
  try {
    return std::make_shared<std::string>(bytes, '\0');
  } catch (const std::exception&) {
    fail(path, ("has " + std::to_string(bytes) + " bytes and cannot be read").c_str(), ENOMEM);
  }
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// A rename itself is on the disk once its folder is. Some network file systems refuse to do that for a folder.
void sync_folder(const fs::path& folder) {
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0 || (::fsync(descriptor.get()) != 0 && errno != EINVAL))
    fail(folder, "cannot be brought to the disk", errno);
}

bool is_the_file(const Descriptor& file, const fs::path& path) {
  struct stat opened{}, named{};
  return ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

// Of two that save to the same file at once, one has it to itself; where the file system knows no locks, nobody has.
Descriptor locked(const fs::path& path) {
  for (;;) {
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
    if (file.get() < 0) fail(path, "cannot be created", errno);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw std::runtime_error(path.string() +
                               " is being written by another process or Checkpoint; each needs a path of its own");
    if (is_the_file(file, path)) return file;  // else its writer has just given it its final name
  }
}

void copy_to_disk(const fs::path& from, const fs::path& to) {
  const WriteSignalsHeld no_signal;
  std::error_code error;
  if (!fs::copy_file(from, to, fs::copy_options::overwrite_existing, error))
    fail(to, "cannot be written", error.value());
  const Descriptor file(::open(to.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) != 0) fail(to, "cannot be brought to the disk", errno);
}

// `to` gets the content of `from`, and has the old one or the new one at any moment: as a second name of the file,
// which costs nothing, where somebody who writes into one may write into both; else, and where the file system knows no
// second names, as a copy.
void give_content(const fs::path& from, const fs::path& to, bool may_share) {
  auto unfinished = to;
  unfinished += ".tmp";
  ::unlink(unfinished.c_str());
  try {
    if (!may_share || ::link(from.c_str(), unfinished.c_str()) != 0) copy_to_disk(from, unfinished);
    if (::rename(unfinished.c_str(), to.c_str()) != 0) fail(to, "cannot be replaced", errno);
  } catch (...) {
    ::unlink(unfinished.c_str());
    throw;
  }
}

}  // namespace

bool verify_seal(std::string_view bytes) {
  const auto archive_bytes = bytes.size() - std::min(bytes.size(), kSealBytes);
  const auto found = bytes.substr(archive_bytes);
  if (!found.starts_with(kSeal)) return false;
  Checksum checksum;
  checksum.add(bytes.substr(0, archive_bytes));
  if (found != seal_of(checksum)) throw std::runtime_error("it is damaged: its checksum is wrong");
  return true;
}

fs::path resolved(const fs::path& path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  auto target = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(target, error); ++i)
    target = folder_of(target) / fs::read_symlink(target, error);
  return target;
}

fs::path with_infix(const fs::path& path, const std::string& infix) {
  return path.parent_path() / (path.stem().string() + '.' + infix + path.extension().string());
}

bool can_be_saved(const fs::path& path) { return ::access(folder_of(resolved(path)).c_str(), W_OK | X_OK) == 0; }

std::shared_ptr<std::string> read(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe would never open
  if (file.get() < 0 && errno == ENOENT) {
    if (can_be_saved(path)) return nullptr;
    fail(path, "does not exist and could not be saved", errno);
  }
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) fail(path, "cannot be read", errno);
  if (!S_ISREG(status.st_mode)) throw std::runtime_error(path.string() + " is not a file");
  const auto bytes = memory_for(path, static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < bytes->size()) {
    const ssize_t count = ::read(file.get(), bytes->data() + done, bytes->size() - done);
    if (count < 0 && errno != EINTR) fail(path, "cannot be read", errno);
    if (count == 0) bytes->resize(done);
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  return bytes;
}

NewFile::NewFile(fs::path path) : path_(std::move(path)), unfinished_(path_) {
  // rename() would put the file in place of a device or a pipe.
  if (std::error_code none; fs::exists(path_, none) && !fs::is_regular_file(path_, none))
    throw std::runtime_error(path_.string() + " is not a file");
  unfinished_ += ".tmp";
  file_ = locked(unfinished_);
  if (::ftruncate(file_.get(), 0) != 0) fail(unfinished_, "cannot be written", errno);
  is_ours_ = true;
}

NewFile::~NewFile() {
  if (is_ours_) ::unlink(unfinished_.c_str());
}

void NewFile::write(std::string_view bytes) noexcept {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush_but(0);
  if (bytes.size() > kBufferBytes) {
    put(bytes.substr(0, bytes.size() - kLengthBytes));
    bytes.remove_prefix(bytes.size() - kLengthBytes);
  }
  buffer_ += bytes;
}

void NewFile::flush_but(std::size_t held_back) noexcept {
  const auto bytes = buffer_.size() - std::min(buffer_.size(), held_back);
  put(std::string_view(buffer_).substr(0, bytes));
  buffer_.erase(0, bytes);
}

void NewFile::put(std::string_view bytes) noexcept {
  const WriteSignalsHeld no_signal;
  checksum_.add(bytes);
  while (error_ == 0 && !bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) error_ = errno;
    if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void NewFile::finish() {
  flush_but(kLengthBytes);
  buffer_ = {static_cast<char>(kSealBytes), '\0'};
  flush_but(0);
  buffer_ = seal_of(checksum_);
  flush_but(0);
  if (error_ != 0) fail(unfinished_, "cannot be written", error_);
  if (::fsync(file_.get()) != 0) fail(unfinished_, "cannot be brought to the disk", errno);
}

void NewFile::copy_to(const fs::path& path) const { give_content(unfinished_, path, /*may_share=*/false); }

void NewFile::replace(int keep) {
  const auto numbered = [this](int number) { return with_infix(path_, std::to_string(number)); };
  std::error_code none;
  // A save that was killed between its two last steps has done the first one already.
  if (keep > 1 && fs::exists(path_, none) && !fs::equivalent(path_, numbered(1), none)) {
    for (int number = keep - 1; number > 1; --number)
      if (fs::exists(numbered(number - 1), none) &&
          ::rename(numbered(number - 1).c_str(), numbered(number).c_str()) != 0)
        fail(numbered(number), "cannot be replaced", errno);
    give_content(path_, numbered(1), /*may_share=*/true);  // until the new file takes the name
  }
  if (::rename(unfinished_.c_str(), path_.c_str()) != 0) fail(path_, "cannot be replaced", errno);
  is_ours_ = false;
  sync_folder(folder_of(path_));
}

}  // namespace ddp::checkpoint
