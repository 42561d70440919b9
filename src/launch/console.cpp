#include "launch/console.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
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

/// A line that wraps could not be taken away again. What steers the terminal takes no column but is cut with the rest.
std::string cut_to(std::string_view text, std::size_t width) {
  if (const auto end = text.rfind("\x1b[K"); end != std::string_view::npos) text = text.substr(0, end);
  return std::string(text.substr(0, width));
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(descriptor, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(size));
  }
  return true;
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
  if (stream.is_open && !stream.waiting.empty()) stream.is_open = write_all(stream.descriptor, stream.waiting);
  stream.waiting.clear();
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
  if (is_drawn_) stream(update_->source.descriptor).waiting += '\n';
  write(output_);
  write(error_);
}

}  // namespace ddp::launch
