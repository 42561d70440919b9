#include "report/scalars_csv.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "base/descriptor.hpp"

namespace ddp::report {
namespace {

/// Whoever comes first writes the header, with the others waiting. Returns an errno, 0 for none.
int write_header(log::LogFile& file) {
  const Descriptor lock(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.get() < 0) return 0;  // one may write there, but not look
  ::flock(lock.get(), LOCK_EX);
  struct stat status{};
  const bool is_empty = ::fstat(lock.get(), &status) == 0 && status.st_size == 0;
  return is_empty ? file.append("wall_time,step,tag,value\n") : 0;
}

/// As RFC 4180 has it.
std::string quoted(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string result = "\"";
  for (const char letter : text) result.append(letter == '"' ? 2 : 1, letter);
  return result + '"';
}

/// The shortest digits that are read as the same number.
std::string shortest(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string microseconds(double seconds) {
  std::array<char, 350> text{};  // the largest number has 309 digits
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), seconds, std::chars_format::fixed, 6).ptr};
}

}  // namespace

ScalarsCsv::ScalarsCsv(const std::string& path) : owner_(::getpid()), file_(path) {
  trouble_.note(path, write_header(file_));
}

void ScalarsCsv::append(const Stamp& stamp, std::string_view tag, double value) {
  pending_ += microseconds(stamp.wall_time) + ',' + std::to_string(stamp.step) + ',' + quoted(tag) + ',' +
              shortest(value) + '\n';
}

void ScalarsCsv::flush() noexcept {
  if (!pending_.empty() && ::getpid() == owner_) trouble_.note(file_.path(), file_.append(pending_));
  pending_.clear();
}

}  // namespace ddp::report
