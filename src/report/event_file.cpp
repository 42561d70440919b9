#include "report/event_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>
#include <system_error>

#include "base/write_signals.hpp"
#include "report/tf_record.hpp"

namespace ddp::report {
namespace {

constexpr std::size_t kMostPending = 256 * 1024;  // thousands of scalars, or a few images

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

/// TensorBoard reads a folder's files in the order of their names, so the time comes first.
std::string file_name(const std::string& suffix) {
  static std::atomic<int> number{0};
  std::array<char, 32> time{};
  std::snprintf(time.data(), time.size(), "%010lld", static_cast<long long>(std::time(nullptr)));
  return std::string("events.out.tfevents.") + time.data() + "." + host_name() + "." + std::to_string(::getpid()) +
         "." + std::to_string(number++) + suffix;
}

}  // namespace

EventFile::EventFile(const std::string& folder, const std::string& suffix) : owner_(::getpid()) {
  // Elsewhere there may be a process of the same number on a host of the same name, as in containers.
  constexpr int tries = 1000;
  int error = EEXIST;
  for (int i = 0; i < tries && error == EEXIST; ++i) {
    path_ = folder + "/" + file_name(suffix);
    const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    error = file < 0 ? errno : 0;
    file_ = Descriptor(file);
  }
  if (error != 0) throw std::system_error(error, std::generic_category(), "the file \"" + path_ + "\" cannot be made");
}

EventFile::~EventFile() { flush(); }

void EventFile::append(std::string_view event) {
  pending_ += tf_record(event);
  if (pending_.size() >= kMostPending) flush();
}

void EventFile::flush() noexcept {
  if (!pending_.empty() && file_.get() >= 0 && ::getpid() == owner_) trouble_.note(path_, write_pending());
  pending_.clear();
}

int EventFile::write_pending() noexcept {
  const WriteSignalsHeld no_signal;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
    if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
    if (written >= 0 || errno == EINTR) continue;
    const int error = errno;
    // Behind a torn record nothing can be read.
    if (rest.size() < pending_.size() && ::ftruncate(file_.get(), whole_) != 0) file_.close();
    return error;
  }
  whole_ += static_cast<off_t>(pending_.size());
  return 0;
}

}  // namespace ddp::report
