#include "ddp/training_plan.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/learning_rate.hpp"
#include "ddp/log.hpp"
#include "ddp/process_group.hpp"
#include "ddp/rate_scheduler.hpp"

namespace ddp {
namespace {

// Beyond this a number was negative before it became one without a sign; products of two stay within 63 bits.
constexpr std::uint64_t kMost = std::uint64_t{1} << 31U;

// What a rank tells the others.
struct Share {
  std::uint64_t local_batch, accumulate, batches, epochs, steps;  // steps: 0 where it ends by epochs

  std::int64_t samples_per_step() const { return static_cast<std::int64_t>(local_batch * accumulate); }
  std::int64_t steps_per_epoch() const { return static_cast<std::int64_t>((batches + accumulate - 1) / accumulate); }
};

std::string packed(const Share& share) { return {reinterpret_cast<const char*>(&share), sizeof share}; }

Share unpacked(std::string_view bytes) {
  Share share;
  std::memcpy(&share, bytes.data(), sizeof share);
  return share;
}

// Empty for a share that makes sense.
std::string problem_of(const Share& share, const Share& of_rank0) {
  const std::array<std::pair<const char*, std::uint64_t>, 4> numbers{{{"local_batch", share.local_batch},
                                                                      {"accumulate", share.accumulate},
                                                                      {"batches", share.batches},
                                                                      {"epochs", share.epochs}}};
  for (const auto& [name, number] : numbers)
    if (number < 1 || number > kMost)
      return std::string(name) + " is " + std::to_string(static_cast<std::int64_t>(number)) +
             ", but at least 1 and at most 2^31";
  if (share.epochs != of_rank0.epochs || share.steps != of_rank0.steps)
    return "it has other epochs or steps than rank 0";
  return {};
}

// Collective.
std::vector<Share> shares_of_all(const TrainingPlanOptions& options, ProcessGroup& group) {
  const bool has_wrong_steps = options.steps && (*options.steps < 1 || *options.steps > std::int64_t{kMost});
  const Share own{.local_batch = options.local_batch,
                  .accumulate = static_cast<std::uint64_t>(options.accumulate),
                  .batches = options.batches,
                  .epochs = static_cast<std::uint64_t>(options.epochs),
                  .steps = static_cast<std::uint64_t>(options.steps.value_or(0))};
  std::vector<Share> shares;
  std::vector<std::string> problems;
  const auto all = group.all_gather_bytes((has_wrong_steps ? '!' : '=') + packed(own), {.label = "training plan"});
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    shares.push_back(unpacked(std::string_view(all[rank]).substr(1)));
    auto problem = problem_of(shares.back(), shares.front());
    if (all[rank].front() == '!')
      problem = "steps is " + std::to_string(static_cast<std::int64_t>(shares.back().steps)) +
                ", but at least 1 and at most 2^31";
    if (!problem.empty())
      throw ConfigError(group.origin(), "training plan", "on rank " + std::to_string(rank) + " " + problem,
                        "give every rank its own batch and batches, and all of them the same length of the run");
  }
  return shares;
}

std::string in_words(const std::vector<double>& rates) {
  std::ostringstream text;
  text << (rates.size() == 1 ? "learning rate " : "learning rates ");
  for (std::size_t i = 0; i < rates.size(); ++i) text << (i == 0 ? "" : ", ") << rates[i];
  return text.str();
}

// What the rates of one batch become for another, for the reader to choose.
std::string scaled_in_words(const std::vector<double>& rates, std::int64_t from, std::int64_t to) {
  std::vector<double> linear, square_root;
  for (const auto rate : rates) {
    const bool can_scale = rate > 0;
    linear.push_back(can_scale ? scaled_learning_rate(rate, from, to, ScalingRule::linear) : rate);
    square_root.push_back(can_scale ? scaled_learning_rate(rate, from, to, ScalingRule::square_root) : rate);
  }
  return "scaled linearly (SGD): " + in_words(linear) +
         ", by the square root (Adam and its like): " + in_words(square_root);
}

}  // namespace

TrainingPlan::TrainingPlan(const TrainingPlanOptions& options, ProcessGroup& group)
    : local_batch_(static_cast<std::int64_t>(options.local_batch)),
      accumulate_(options.accumulate),
      ranks_(group.size()),
      epochs_(options.epochs),
      ends_by_steps_(options.steps.has_value()) {
  smallest_batch_ = local_batch_;
  for (const auto& share : shares_of_all(options, group)) {
    const auto batch = static_cast<std::int64_t>(share.local_batch);
    smallest_batch_ = std::min(smallest_batch_, batch);
    largest_batch_ = std::max(largest_batch_, batch);
    global_batch_ += share.samples_per_step();
    steps_per_epoch_ = std::max(steps_per_epoch_, share.steps_per_epoch());
  }
  steps_ = options.steps.value_or(epochs_ * steps_per_epoch_);
}

std::string TrainingPlan::batches_in_words() const {
  std::ostringstream text;
  text << "local batch " << smallest_batch_;
  if (largest_batch_ != smallest_batch_) text << " to " << largest_batch_;
  if (accumulate_ > 1) text << " in each of " << accumulate_ << " micro-batches";
  text << ", global batch " << global_batch_ << " on " << ranks_ << (ranks_ == 1 ? " rank" : " ranks");
  return text.str();
}

std::string TrainingPlan::length_in_words() const {
  std::ostringstream text;
  text << steps_per_epoch_ << " steps an epoch, " << steps_;
  if (ends_by_steps_)
    text << " in all";
  else
    text << " in " << epochs_ << (epochs_ == 1 ? " epoch" : " epochs");
  return text.str();
}

void TrainingPlan::report(const RateScheduler& scheduler) const {
  log::info("training plan: {}; {}; {}", batches_in_words(), length_in_words(), in_words(scheduler.base_rates()));
  const auto length = scheduler.schedule().length();
  if (!length || *length == steps_) return;
  log::warn("training plan: the schedule lasts {} steps, but the run {}: {}", *length, steps_,
            *length < steps_ ? "the last ones keep its final rate" : "it ends before the schedule does");
}

CheckpointValue TrainingPlan::checkpoint_value(const RateScheduler& scheduler) const {
  const auto rates = scheduler.base_rates();
  const auto state = [batch = global_batch_, rates]() -> c10::IValue {
    c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
    dict.insert("global_batch", batch);
    dict.insert("base_rates", detail::to_ivalue(rates));
    return dict;
  };
  const auto stage = [batch = global_batch_, rates](const c10::IValue& saved) -> std::function<void()> {
    detail::expect(saved.isGenericDict(), "a dict");
    const auto dict = saved.toGenericDict();
    detail::expect(dict.contains("global_batch") && dict.contains("base_rates"),
                   "one with global_batch and base_rates");
    const auto batch_before = detail::from_ivalue<std::int64_t>(dict.at("global_batch"));
    const auto rates_before = detail::from_ivalue<std::vector<double>>(dict.at("base_rates"));
    detail::expect(batch_before > 0, "a global_batch of 1 at least");
    if (batch_before == batch || rates_before != rates) return [] {};
    return [=] {
      log::warn("training plan: the checkpoint's global batch is {}, here it is {}, at the same {}; {}", batch_before,
                batch, in_words(rates), scaled_in_words(rates, batch_before, batch));
    };
  };
  return {.state = state, .stage = stage};
}

}  // namespace ddp
