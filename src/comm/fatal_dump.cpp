#include "comm/fatal_dump.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "base/fatal_signals.hpp"
#include "comm/flight_dump.hpp"
#include "comm/watch_frame.hpp"

namespace ddp::comm {
namespace {

/// A line of text of a fixed size; what is too much is left out.
class Line {
 public:
  Line& add(std::string_view text) noexcept {
    size_ += text.copy(text_.data() + size_, text_.size() - size_);
    return *this;
  }
  Line& add(std::uint64_t number, unsigned base) noexcept {
    std::array<char, 20> digits;
    auto begin = digits.size();
    do digits[--begin] = "0123456789abcdef"[number % base];
    while ((number /= base) > 0);
    return add({digits.data() + begin, digits.size() - begin});
  }
  std::string_view text() const noexcept { return {text_.data(), size_}; }

 private:
  std::array<char, 4096> text_{};
  std::size_t size_ = 0;
};

constinit std::array<char, 4096> last_words{};
constinit std::atomic<std::size_t> last_words_bytes{0};
constinit std::atomic<bool> has_last_words{false};

// One handler at a time, perhaps on a small stack.
constinit DumpRoom room;
constinit Line name, error, line;

bool has_address(const siginfo_t& signal) { return signal.si_signo != SIGABRT && signal.si_code > 0; }

std::string_view reason(const siginfo_t& signal) {
  if (!has_address(signal))
    return signal.si_signo == SIGABRT ? std::string_view(last_words.data(), last_words_bytes) : "";
  return error.add("at address 0x").add(reinterpret_cast<std::uintptr_t>(signal.si_addr), 16).text();
}

void say(const DumpAuthor& author, int failure) {
  line.add("rank ").add(static_cast<std::uint64_t>(author.origin.rank), 10).add(" of ");
  line.add(static_cast<std::uint64_t>(author.origin.world_size), 10).add(": ").add(name.text());
  if (failure == 0) {
    line.add("; this rank's calls are in ").add(author.path);
  } else {
    const char* const why = ::strerrordesc_np(failure);
    line.add("; cannot write this rank's calls to ").add(author.path).add(": ").add(why ? why : "an unknown error");
  }
  const auto text = line.add("\n").text();
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

void report(const siginfo_t& signal) {
  CurrentAuthor::read([&](const DumpAuthor& author) {
    const char* const known = ::sigabbrev_np(signal.si_signo);
    name.add("SIG").add(known ? known : "NAL");
    const DumpCause cause{name.text(), reason(signal)};
    say(author, save_dump(author.path.c_str(), author, cause, nullptr, room));
  });
}

}  // namespace

void dump_at_fatal_signals() noexcept { report_fatal_signals(report); }

void note_last_words(std::string_view text) noexcept {
  if (has_last_words.exchange(true)) return;
  last_words_bytes = watch::copy_bounded(text, last_words);
}

}  // namespace ddp::comm
