#include "start/spawn_report.hpp"

#include <fcntl.h>

#include <cerrno>
#include <charconv>

#include "base/write_signals.hpp"

namespace ddp::start {
namespace {

constexpr char kEnd = '\0';  // of a field of what threw() writes

}  // namespace

SpawnReport::SpawnReport(int pipe) : pipe_(pipe) { ::fcntl(pipe, F_SETFD, FD_CLOEXEC); }

void SpawnReport::threw(int exit_code, std::string_view type, std::string_view text) const {
  std::string bytes = "T" + std::to_string(exit_code) + kEnd;
  bytes.append(type) += kEnd;
  write(bytes.append(text));
}

void SpawnReport::write(std::string_view bytes) const {
  const WriteSignalsHeld held;
  while (!bytes.empty()) {
    const ssize_t size = ::write(pipe_.get(), bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(size));
  }
}

SpawnHeard::Stage SpawnHeard::stage() const {
  if (bytes_.empty()) return Stage::started;
  if (bytes_.size() == 1) return Stage::begun;
  return bytes_[1] == 'D' ? Stage::done : Stage::threw;
}

int SpawnHeard::exit_code() const {
  const auto digits = field(0);
  int code = 1;
  std::from_chars(digits.data(), digits.data() + digits.size(), code);
  return code;
}

// "BT" number NUL type NUL text
std::string SpawnHeard::field(int number) const {
  std::size_t from = 2;
  for (int before = 0; before < number; ++before) {
    const auto end = bytes_.find(kEnd, from);
    if (end == std::string::npos) return {};
    from = end + 1;
  }
  return number == 2 ? bytes_.substr(from) : bytes_.substr(from, bytes_.find(kEnd, from) - from);
}

}  // namespace ddp::start
