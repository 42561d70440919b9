#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <mutex>
#include <string>

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
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    constexpr std::string_view kContinued = "... ";
    constexpr std::size_t kPrefixLimit = 512;  // time, level, rank and a host name of at most 255 bytes
    constexpr std::size_t kRoom = PIPE_BUF - kPrefixLimit - kContinued.size();
    std::string_view text(message.payload.data(), message.payload.size());
    spdlog::memory_buf_t pending;
    for (bool ended = true, first = true; first || !text.empty(); first = false) {
      std::string line(ended ? "" : kContinued);
      line += take_line(text, kRoom, ended);
      auto part = message;
      part.payload = line;
      spdlog::memory_buf_t formatted;
      formatter_->format(part, formatted);
      if (pending.size() + formatted.size() > PIPE_BUF) {
        write_all(STDERR_FILENO, pending.data(), pending.size());
        pending.clear();
      }
      pending.append(formatted.begin(), formatted.end());
    }
    write_all(STDERR_FILENO, pending.data(), pending.size());
  }
  void flush_() override {}
};

/// Never destroyed: threads that outlive main() may still speak.
spdlog::logger& logger() {
  static auto* const instance = [] {
    auto sink = std::make_shared<StderrSink>();
    sink->set_formatter(line_formatter({}));
    auto* made = new spdlog::logger("ddp", std::move(sink));
    made->set_level(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

}  // namespace

void name_speaker(const Identity& identity) { logger().sinks().front()->set_formatter(line_formatter(identity)); }

void put(Level level, std::string_view text) {
  logger().log(static_cast<spdlog::level::level_enum>(spdlog::level::debug + static_cast<int>(level)),
               spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace ddp::log
