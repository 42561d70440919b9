#include "base/stop_wish.hpp"

#include <atomic>
#include <csignal>
#include <cstring>
#include <map>

namespace ddp {
namespace {

constinit std::atomic<StopReason> wish{kNoStop};
static_assert(std::atomic<StopReason>::is_always_lock_free);  // for signal handlers

struct Ranks {
  std::string numbers;
  std::size_t count = 0;

  void add(std::size_t rank) {
    numbers.append(count == 0 ? "" : ", ").append(std::to_string(rank));
    ++count;
  }
  std::string named(std::size_t world_size) const {
    if (count == 1) return "rank " + numbers;
    return count == world_size ? "all ranks" : "ranks " + numbers;
  }
};

}  // namespace

void want_to_stop(StopReason reason) noexcept {
  StopReason none = kNoStop;
  wish.compare_exchange_strong(none, reason);
}

StopReason stop_wish() noexcept { return wish; }

std::string name_of(StopReason reason) {
  if (reason == kStopByProgram) return "request_stop()";
  if (reason == kStopAgreedBefore) return "an earlier agreement";
  const char* const name = ::sigabbrev_np(reason);
  return name ? std::string("SIG") + name : "signal " + std::to_string(reason);
}

std::string described(const std::vector<StopReason>& reasons) {
  std::map<StopReason, Ranks> ranks_of;
  for (std::size_t rank = 0; rank < reasons.size(); ++rank)
    if (reasons[rank] != kNoStop) ranks_of[reasons[rank]].add(rank);
  if (ranks_of.size() > 1) ranks_of.erase(kStopAgreedBefore);
  std::string text;
  for (const auto& [reason, ranks] : ranks_of)
    text.append(text.empty() ? "" : ", ").append(name_of(reason) + " on " + ranks.named(reasons.size()));
  return text;
}

}  // namespace ddp
