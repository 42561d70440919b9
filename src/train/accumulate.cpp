#include "ddp/accumulate.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

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

void MicroBatch::backward(const at::Tensor& loss) {
  if (is_done_) refuse("backward() was called twice for one micro-batch");
  is_done_ = true;
  (loss / static_cast<double>(divisor_)).backward();
}

void MicroBatch::require_predecessors(std::int64_t micro_batches) const {
  if (micro_batches == place_) return;
  refuse(
      "this is micro-batch " + std::to_string(place_ + 1) + " of " + std::to_string(divisor_) + " of its step, but " +
      std::to_string(micro_batches) +
      " came before it since the last reduction; number them one by one, and save checkpoints where steps() is true");
}

}  // namespace ddp
