// Means that become gradients while others are still on their way, for an optimizer that steps in backward().
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "comm/text_of.hpp"
#include "reduce/reducer_impl.hpp"

namespace ddp {

void Reducer::Impl::hand_means_to(std::weak_ptr<MeanTaker> taker) {
  const std::lock_guard lock(mutex_);
  if (!group_->device().is_cpu() || buckets_->size() == 0) return;
  const auto is_same = [&](const auto& known) { return !known.owner_before(taker) && !taker.owner_before(known); };
  if (std::any_of(takers_.begin(), takers_.end(), is_same)) return;
  takers_.push_back(std::move(taker));
  if (record_leads_) return;
  record_leads_ = true;
  if (own_carrier_.defined()) return;
  carrier().zero_();  // it travels on with the last bucket, and must not grow
  own_carrier_ = at::zeros({static_cast<std::int64_t>(record_->elements())}, at::kFloat);
}

void Reducer::Impl::ask_takers() {
  std::erase_if(takers_, [](const auto& taker) { return taker.expired(); });
  for (const auto& known : takers_) {
    const auto taker = known.lock();
    try {
      if (taker && taker->wants_means()) wanting_.push_back(taker);
    } catch (...) {
      if (fault_.empty()) fault_ = comm::text_of(std::current_exception());
    }
  }
}

// The last bucket leaves when the backward is over on this rank, hence when all that the record says is known.
void Reducer::Impl::lead_with_record(std::size_t bucket) {
  if (record_leads_ && bucket + 1 == buckets_->size()) flight_.launch(own_carrier_, "control record");
}

void Reducer::Impl::hand_out_means() {
  if (wanting_.empty()) return;
  flight_.wait_for(LaunchQueue::kNoBucket);
  read_record();
  if (!may_hand_out()) return;
  correction_ = weight_.correction(record_->sum(samples_));
  for (std::size_t b = 0; b < buckets_->size(); ++b) {
    flight_.wait_for(b);
    correct(b);
    std::vector<at::Tensor> parameters;
    for (const auto i : buckets_->plan()[b]) {
      publish(i);
      parameters.push_back(tensors_[i]);
    }
    handed_out_ = b + 1;
    for (const auto& taker : wanting_) taker->take(parameters);
  }
}

// Not what is void on some rank or still to be completed, and not where losses were scaled: whether a step is taken at
// all is known only once all means are there.
bool Reducer::Impl::may_hand_out() const {
  return is_same_round() && !any_rank_has(kFaulty) && !any_rank_has(kHasLate) && record_->sum(scale_) == 0 &&
         record_->sum(left_) == 0;
}

}  // namespace ddp
