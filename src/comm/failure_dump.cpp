#include "comm/failure_dump.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>

#include "comm/dump_thread.hpp"
#include "comm/flight_dump.hpp"

namespace ddp::comm {
namespace {

// Longer than a dump takes where threads do not answer. A file system that hangs must not keep the error back.
constexpr std::chrono::seconds kPatience{10};
constexpr std::size_t kRemembered = 8;  // failures: groups fail one after the other, within seconds

struct Written {
  std::string failure;
  std::string path;  // empty: there is none
};

struct Journal {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Written> written;  // the latest last
};

// Never destroyed: a call may time out while the process exits.
Journal& journal() {
  static auto* const one = new Journal;
  return *one;
}

bool leaves_dumps(const Breakage& breakage) {
  switch (breakage.kind) {
    case Breakage::Kind::timed_out:
    case Breakage::Kind::peer_timed_out:
    case Breakage::Kind::mismatch:
      return true;
    default:
      return false;
  }
}

std::string error_of(const Breakage& breakage, Origin origin, std::string_view part) {
  try {
    breakage.raise(origin, part);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A failure's text grows on its way from rank to rank and from group to group.
const Written* find(const std::deque<Written>& all, const std::string& failure) {
  const auto is_same = [&](const Written& one) {
    return failure.find(one.failure) != std::string::npos || one.failure.find(failure) != std::string::npos;
  };
  const auto found = std::ranges::find_if(all, is_same);
  return found == all.end() ? nullptr : &*found;
}

// On the dump thread, so one at a time.
void write(const Breakage& breakage, Origin origin, const std::string& part) {
  auto& log = journal();
  {
    const std::lock_guard lock(log.mutex);
    if (find(log.written, breakage.text) != nullptr) return;
  }
  const auto* const why = breakage.kind == Breakage::Kind::mismatch ? "mismatch" : "timeout";
  auto path = dump_or_warn({why, error_of(breakage, origin, part)});
  {
    const std::lock_guard lock(log.mutex);
    if (log.written.size() == kRemembered) log.written.pop_front();
    log.written.push_back({breakage.text, std::move(path)});
  }
  log.changed.notify_all();
}

bool request(const Breakage& breakage, Origin origin, std::string_view part) noexcept {
  try {
    return leaves_dumps(breakage) &&
           ask_dump_thread([breakage, origin, part = std::string(part)] { write(breakage, origin, part); });
  } catch (const std::exception&) {
    return false;  // no memory: the error itself is what counts
  }
}

}  // namespace

void hear_of_failure(const Breakage& breakage, Origin origin, std::string_view part) noexcept {
  request(breakage, origin, part);
}

std::string dump_at_failure(const Breakage& breakage, Origin origin, std::string_view part) noexcept {
  try {
    if (!request(breakage, origin, part)) return {};
    auto& log = journal();
    std::string path;
    std::unique_lock lock(log.mutex);
    log.changed.wait_for(lock, kPatience, [&] {
      const auto* const written = find(log.written, breakage.text);
      if (written != nullptr) path = written->path;
      return written != nullptr;
    });
    return path.empty() ? path : "\n  this rank's calls are in " + path;
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace ddp::comm
