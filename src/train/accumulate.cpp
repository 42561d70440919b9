#include "ddp/accumulate.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "ddp/log.hpp"

namespace ddp {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw std::logic_error("ddp: accumulate: " + text); }

}  // namespace

MicroBatch::MicroBatch(std::int64_t number, std::int64_t per_step, std::optional<std::int64_t> total) {
  if (per_step < 1) refuse("a step of " + std::to_string(per_step) + " micro-batches; at least 1 is wanted");
  if (number < 1 || number > total.value_or(number))
    refuse("micro-batch " + std::to_string(number) + (total ? " of " + std::to_string(*total) : "") +
           "; they are counted from 1 on");
  place_ = (number - 1) % per_step;
  const auto first = number - place_;
  divisor_ = total ? std::min(per_step, *total - first + 1) : per_step;
}

MicroBatch::MicroBatch(MicroBatch&& other) noexcept
    : place_(other.place_),
      divisor_(other.divisor_),
      is_done_(std::exchange(other.is_done_, true)),
      guard_(std::move(other.guard_)) {}

MicroBatch::~MicroBatch() {
  static std::atomic<bool> has_warned{false};
  if (is_done_ || std::uncaught_exceptions() > 0 || has_warned.exchange(true)) return;
  log::warn(
      "accumulate: a micro-batch ended without its backward(): call micro.backward(loss), which divides the loss by "
      "the "
      "{} micro-batches of the step, instead of loss.backward()",
      divisor_);
}

void MicroBatch::backward(const at::Tensor& loss) {
  if (is_done_) refuse("backward() was called twice for one micro-batch");
  is_done_ = true;
  (loss / static_cast<double>(divisor_)).backward();
}

void MicroBatch::require_predecessors(std::int64_t micro_batches) const {
  if (micro_batches == place_) return;
  refuse("this is micro-batch " + std::to_string(place_ + 1) + " of " + std::to_string(divisor_) +
         " of its step, but " + std::to_string(micro_batches) +
         " came before it since the last reduction; number them one by one, save checkpoints where steps() is true, "
         "and zero_grad() where a step is given up");
}

}  // namespace ddp
