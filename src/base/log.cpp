#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/log_settings.hpp"
#include "base/log_sink.hpp"

namespace ddp::log {
namespace {

/// "info rank 3 node7"
class SpeakerFlag : public spdlog::custom_flag_formatter {
 public:
  explicit SpeakerFlag(Identity identity) : identity_(std::move(identity)) {}

  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string text = name_of(static_cast<Level>(message.level - spdlog::level::debug));
    text += " rank " + std::to_string(identity_.rank);
    if (!identity_.host.empty()) text += " " + identity_.host;
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<SpeakerFlag>(identity_); }

 private:
  Identity identity_;
};

std::unique_ptr<spdlog::formatter> line_formatter(Identity identity) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc, "\n");
  formatter->add_flag<SpeakerFlag>('*', std::move(identity)).set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %*: %v");
  return formatter;
}

/// Writes all bytes; gives up on any error, for which there is no place left to report it.
void write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written >= 0) {
      data += written;
      size -= static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

/// Takes from `text` what fits into `room` bytes, up to the first newline, and not half a UTF-8 character.
std::string_view take_line(std::string_view& text, std::size_t room, bool& ended) {
  const std::size_t newline = std::min(text.find('\n'), text.size());
  std::size_t length = newline;
  if (length > room) {
    length = room;
    while (length > room - 4 && (text[length] & 0xC0) == 0x80) --length;
  }
  const std::string_view line = text.substr(0, length);
  ended = length == newline;
  text.remove_prefix(std::min(length + (ended ? 1 : 0), text.size()));
  return line;
}

/// One message to one or more lines, in as few writes of at most PIPE_BUF bytes as they fit into: the kernel keeps
/// such a write in one piece among those of other processes.
///
/// Threads: safe.
class Lines {
 public:
  void name_speaker(const Identity& identity) {
    auto formatter = line_formatter(identity);
    const std::scoped_lock lock(mutex_);
    formatter_.swap(formatter);
  }
  void use_file(std::unique_ptr<LogFile> file) {
    const std::scoped_lock lock(mutex_);
    file_.swap(file);
    file_failed_ = false;
  }
  void put(Level level, std::string_view text, Places places);

 private:
  spdlog::memory_buf_t formatted(Level level, spdlog::log_clock::time_point time, std::string_view line);
  void write(std::string_view lines, Places places);

  std::mutex mutex_;
  std::unique_ptr<spdlog::formatter> formatter_ = line_formatter({});
  std::unique_ptr<LogFile> file_;
  bool file_failed_ = false;  // and somebody has been told
};

spdlog::memory_buf_t Lines::formatted(Level level, spdlog::log_clock::time_point time, std::string_view line) {
  const auto spdlog_level = static_cast<spdlog::level::level_enum>(spdlog::level::debug + static_cast<int>(level));
  const spdlog::details::log_msg message(time, {}, {}, spdlog_level, {line.data(), line.size()});
  spdlog::memory_buf_t text;
  formatter_->format(message, text);
  return text;
}

void Lines::put(Level level, std::string_view text, Places places) {
  constexpr std::string_view kContinued = "... ";
  constexpr std::size_t kPrefixLimit = 512;  // time, level, rank and a host name of at most 255 bytes
  constexpr std::size_t kRoom = PIPE_BUF - kPrefixLimit - kContinued.size();
  const std::scoped_lock lock(mutex_);
  const auto now = spdlog::log_clock::now();
  spdlog::memory_buf_t pending;
  for (bool ended = true, first = true; first || !text.empty(); first = false) {
    std::string line(ended ? "" : kContinued);
    line += take_line(text, kRoom, ended);
    const auto next = formatted(level, now, line);
    if (pending.size() + next.size() > PIPE_BUF) {
      write({pending.data(), pending.size()}, places);
      pending.clear();
    }
    pending.append(next.begin(), next.end());
  }
  write({pending.data(), pending.size()}, places);
}

void Lines::write(std::string_view lines, Places places) {
  if (places.console) write_all(STDERR_FILENO, lines.data(), lines.size());
  if (!places.file || !file_) return;
  const int error = file_->append(lines);
  if (error == 0 || file_failed_) return;
  file_failed_ = true;
  const auto complaint = formatted(Level::error, spdlog::log_clock::now(),
                                   "log: lines are missing in \"" + file_->path() +
                                       "\", which could not be written: " + std::generic_category().message(error));
  write_all(STDERR_FILENO, complaint.data(), complaint.size());
}

/// Never destroyed: threads that outlive main() may still speak.
Lines& lines() {
  static auto* const instance = new Lines;
  return *instance;
}

}  // namespace

void name_speaker(const Identity& identity) { lines().name_speaker(identity); }

void use_file(std::unique_ptr<LogFile> file) { lines().use_file(std::move(file)); }

void put(Level level, std::string_view text, Places places) noexcept {
  try {
    lines().put(level, text, places);
  } catch (...) {
    constexpr std::string_view kLost = "log: no memory for a line\n";
    write_all(STDERR_FILENO, kLost.data(), kLost.size());
  }
}

}  // namespace ddp::log
