#include "comm/stop_agreement.hpp"

#include <algorithm>
#include <atomic>

#include "base/stop_wish.hpp"
#include "ddp/error.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

/// Of the process, as is the wish: it outlives groups.
constinit std::atomic<bool> agreed{false};

}  // namespace

StopReason stop_wish_to_tell() noexcept {
  const auto wish = stop_wish();
  return wish == kNoStop && agreed ? kStopAgreedBefore : wish;
}

bool agree_to_stop(const ProcessGroup& group, const std::vector<StopReason>& told) {
  if (std::ranges::all_of(told, [](StopReason reason) { return reason == kNoStop; })) return false;
  const bool has_all_ranks = group.size() == group.origin().world_size;
  if (has_all_ranks && !agreed.exchange(true)) log::info("all ranks are to stop after this step: {}", described(told));
  return true;
}

bool is_stop_agreed() noexcept { return agreed; }

void require_no_wish(const Environment& environment, std::string_view part) {
  const auto wish = stop_wish();
  if (wish == kNoStop) return;
  throw CommError({environment.rank, environment.world_size}, part,
                  "asked to stop by " + name_of(wish) + " before the ranks had met");
}

}  // namespace ddp::comm
