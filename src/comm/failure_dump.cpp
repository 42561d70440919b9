#include "comm/failure_dump.hpp"

#include <exception>
#include <mutex>

#include "comm/flight_dump.hpp"

namespace ddp::comm {
namespace {

struct Latest {
  std::mutex mutex;
  std::string text;
  std::string path;
};

// Never destroyed: a call may time out while the process exits.
Latest& latest() {
  static auto* const one = new Latest;
  return *one;
}

// The other ranks hear of a time-out as of any failure of a rank; its text tells.
bool is_of_a_time_out(const Breakage& breakage) {
  if (breakage.kind == Breakage::Kind::timed_out) return true;
  const auto first_line = std::string_view(breakage.text).substr(0, breakage.text.find('\n'));
  return breakage.kind == Breakage::Kind::peer_raised && first_line.find("timed out after ") != std::string_view::npos;
}

std::string error_of(const Breakage& breakage, Origin origin, std::string_view part) {
  try {
    breakage.raise(origin, part);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A failure's text grows on its way from rank to rank and from group to group.
bool is_same(const std::string& failure, const std::string& other) {
  return !other.empty() && (failure.find(other) != std::string::npos || other.find(failure) != std::string::npos);
}

}  // namespace

std::string dump_at_failure(const Breakage& breakage, Origin origin, std::string_view part) noexcept {
  const bool is_mismatch = breakage.kind == Breakage::Kind::mismatch;
  if (!is_mismatch && !is_of_a_time_out(breakage)) return {};
  try {
    auto& last = latest();
    const std::lock_guard lock(last.mutex);
    if (!is_same(breakage.text, last.text)) {
      last.text = breakage.text;
      last.path = dump_or_warn({is_mismatch ? "mismatch" : "timeout", error_of(breakage, origin, part)});
    }
    return last.path.empty() ? std::string() : "; this rank's calls are in " + last.path;
  } catch (const std::exception&) {
    return {};  // no memory: the error itself is what counts
  }
}

}  // namespace ddp::comm
