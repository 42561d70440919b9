#include "base/log_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/write_signals.hpp"

namespace ddp::log {
namespace {

// O_NONBLOCK for the opening alone: a named pipe without a reader would never open.
Descriptor open_to_append(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666));
  if (file.get() >= 0) ::fcntl(file.get(), F_SETFL, O_APPEND);
  return file;
}

[[noreturn]] void fail(const std::string& what, std::error_code why) {
  throw std::runtime_error(what + ": " + why.message());
}

}  // namespace

LogFile::LogFile(std::string path) : path_(std::move(path)), file_(open_to_append(path_)) {
  if (file_.get() < 0 && errno == ENOENT) {
    const auto folder = std::filesystem::path(path_).parent_path();
    std::error_code not_made;
    if (!folder.empty()) std::filesystem::create_directories(folder, not_made);
    if (not_made) fail("the folder \"" + folder.string() + "\" cannot be made", not_made);
    file_ = open_to_append(path_);
  }
  if (file_.get() >= 0) return;
  const std::error_code error(errno, std::generic_category());
  fail("the file \"" + path_ + "\" cannot be opened", error);
}

int LogFile::append(std::string_view lines) noexcept {
  const WriteSignalsHeld no_signal;
  const auto put = [&](std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) return errno;
      if (written > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(written));
        torn_ = !bytes.empty();
      }
    }
    return 0;
  };
  if (torn_) {
    if (const int error = put("\n"); error != 0) return error;
  }
  return put(lines);
}

}  // namespace ddp::log
