#include "ddp/stop.hpp"

#include <ATen/ops/zeros.h>

#include <atomic>

#include "base/stop_signals.hpp"
#include "base/stop_wish.hpp"
#include "comm/sessions.hpp"
#include "comm/stop_agreement.hpp"
#include "ddp/log.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
namespace {

/// A loop that asks as often and has told nobody runs no backward that would; more than the micro-batches of a step.
constexpr int kUnheard = 100;

void warn_if_unheard(StopReason wish) {
  static std::atomic<int> asked{0};
  if (++asked == kUnheard)
    log::all.warn(
        "this rank is to stop ({}), which no other one knows: stop_requested() was called {} times since then, but no "
        "backward of a DistributedDataParallel over all ranks was reduced; in such a loop call stop_requested(*group)",
        name_of(wish), kUnheard);
}

void say_once(StopReason wish) {
  static std::atomic<bool> is_said{false};
  if (!is_said.exchange(true)) log::info("the program is to stop after this step: {}", name_of(wish));
}

}  // namespace

void stop_on_signals(std::initializer_list<int> signals) { want_to_stop_at(signals); }

void request_stop() noexcept { want_to_stop(kStopByProgram); }

bool stop_requested() {
  if (comm::is_stop_agreed()) return true;
  const auto wish = stop_wish();
  if (wish == kNoStop) return false;
  if (comm::has_company()) {
    warn_if_unheard(wish);
    return false;
  }
  say_once(wish);
  return true;
}

bool stop_requested(ProcessGroup& group) {
  auto told = at::zeros({group.size()}, at::kByte);
  auto* const reasons = told.mutable_data_ptr<StopReason>();
  reasons[group.rank()] = comm::stop_wish_to_tell();
  group.all_reduce(told, ReduceOp::sum, {.label = "wishes to stop"});
  return comm::agree_to_stop(group, {reasons, reasons + group.size()});
}

}  // namespace ddp
