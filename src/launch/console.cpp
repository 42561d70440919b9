#include "launch/console.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace ddp::launch {
namespace {

constexpr std::string_view kStartOfLine = "\r\x1b[K";  // and nothing to the right of it
constexpr std::array kColours{"36", "33", "32", "35", "34", "31"};

bool wants_colours() {
  const auto* const none = std::getenv("NO_COLOR");  // https://no-color.org
  const auto* const terminal = std::getenv("TERM");
  return (none == nullptr || *none == '\0') && (terminal == nullptr || std::string_view(terminal) != "dumb");
}

std::size_t columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// Where the sequence that steers the terminal and begins at `from` ends: "\x1b[31m".
std::size_t end_of_sequence(std::string_view text, std::size_t from) {
  const auto end = text.find_first_of("ABCDEFGHJKSTfhlmnsu", from + 2);
  return text.substr(from + 1, 1) != "[" || end == std::string_view::npos ? from + 1 : end + 1;
}

/// A line that wraps could not be taken away again. What gives colours stays, also behind the cut; what moves or erases
/// goes.
std::string cut_to(std::string_view text, std::size_t width) {
  std::string cut;
  std::size_t columns_taken = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '\x1b') {
      const auto end = end_of_sequence(text, i);
      if (text[end - 1] == 'm') cut += text.substr(i, end - i);
      i = end;
      continue;
    }
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;  // UTF-8: or goes on with a character
    if (begins) ++columns_taken;
    if (columns_taken <= width) cut += text[i];
    ++i;
  }
  return cut;
}

/// 0, or errno's value.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(descriptor, text.data(), text.size());
    if (size >= 0) {
      text.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN) {  // somebody who shares it does not want to wait
      pollfd ready{descriptor, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

Console::Console(int ranks)
    : ranks_(ranks),
      output_{STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1, false},
      error_{STDERR_FILENO, ::isatty(STDERR_FILENO) == 1, false} {
  output_.has_colours = output_.is_terminal && wants_colours();
  error_.has_colours = error_.is_terminal && wants_colours();
}

std::string Console::prefix(const Stream& stream, int rank) const {
  if (rank < 0 || ranks_ == 1) return {};
  const auto text = "[rank " + std::to_string(rank) + "]";
  if (!stream.has_colours) return text + " ";
  return std::string("\x1b[") + kColours[static_cast<std::size_t>(rank) % kColours.size()] + "m" + text + "\x1b[0m ";
}

void Console::add(int descriptor, int rank, std::string_view text, bool is_update) {
  auto& to = stream(descriptor);
  if (!to.is_open) return;
  const Source source{descriptor, rank};
  if (update_ && (is_update || update_->source == source)) {
    take_update_away(stream(update_->source.descriptor));
    update_.reset();
  }
  if (is_update) {
    const auto taken = ranks_ == 1 ? 0 : 8 + std::to_string(rank).size();  // by the prefix
    const auto width = columns(descriptor);
    update_ = {source, prefix(to, rank) + cut_to(text, width > taken + 1 ? width - taken - 1 : 0)};
    return;
  }
  take_update_away(to);
  keep_order(to);
  (to.waiting += prefix(to, rank)).append(text) += '\n';
}

void Console::take_update_away(Stream& stream) {
  if (!is_drawn_ || !stream.is_terminal) return;
  keep_order(stream);
  stream.waiting += kStartOfLine;
  is_drawn_ = false;
}

void Console::keep_order(const Stream& next) {
  auto& other = &next == &output_ ? error_ : output_;
  if (next.is_terminal && other.is_terminal) write(other);
}

void Console::write(Stream& stream) {
  if (!stream.is_open || stream.waiting.empty()) return;
  const int error = write_all(stream.descriptor, stream.waiting);
  stream.waiting.clear();
  if (error == 0) return;
  stream.is_open = error != EPIPE && error != EBADF;  // else there may be room again later
  if (stream.has_failed || error == EPIPE) return;    // whoever closes a pipe knows
  stream.has_failed = true;
  const auto line = std::string("ddprun: output is lost: cannot write to standard ") +
                    (&stream == &output_ ? "output: " : "error: ") + std::strerror(error) + "\n";
  write_all((&stream == &output_ ? error_ : output_).descriptor, line);
}

bool Console::flush() {
  if (update_ && !is_drawn_) {
    auto& to = stream(update_->source.descriptor);
    keep_order(to);
    to.waiting += update_->text;
    is_drawn_ = true;
  }
  write(output_);
  write(error_);
  return output_.is_open || error_.is_open;
}

void Console::finish() {
  if (update_ && is_drawn_) stream(update_->source.descriptor).waiting += '\n';
  write(output_);
  write(error_);
}

}  // namespace ddp::launch
