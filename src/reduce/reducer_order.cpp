// What the first rounds show and later ones go by: the order in which gradients come about, and the static graph.
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/planned_calls.hpp"
#include "ddp/log.hpp"
#include "reduce/reducer_impl.hpp"

namespace ddp {
namespace {

// A new plan costs new buckets, so it has to bring something: buckets that leave this much earlier, as a part of the
// whole backward.
constexpr double kWorthwhile = 0.01;

}  // namespace

// What a graph records once is done in each replay: so the first steps, which find out, cannot be among it.
std::string Reducer::Impl::why_not_recorded() const {
  if (!comm::PlannedCalls::is_capturing(*group_)) return {};
  if (!options_.static_graph) return "a step can be recorded into a graph with the option static_graph alone";
  if (!is_learned_ || !order_is_agreed_ || next_plan_)
    return "run at least two steps before one is recorded into a graph: in them the order of the gradients is found";
  return {};
}

void Reducer::Impl::learn() {
  if (!order_is_agreed_) agree_on_order();
  if (options_.static_graph && !is_learned_ && !is_shadow_) {
    for (std::size_t i = 0; i < expected_.size(); ++i) expected_[i] = queue_->arrivals(i);
    is_learned_ = true;
  }
  if (options_.find_unused_parameters && !options_.static_graph)
    usage_.end_step(parameters_, *record_, any_rank_has(kLacks));
}

// One rank's order holds for all: rank 0's, unless it has left its loop. Gradients that it did not get come last.
void Reducer::Impl::agree_on_order() {
  order_is_agreed_ = true;
  for (const auto& bucket : buckets_->plan())
    for (const auto i : bucket)
      if (queue_->arrivals(i) == 0) arrival_order_.push_back(i);
  std::vector<std::int64_t> order;
  for (const auto i : arrival_order_)
    if (buckets_->has_slot(i)) order.push_back(static_cast<std::int64_t>(i));
  auto agreed = at::tensor(order, at::kLong);
  comm::PlannedCalls::broadcast(*group_, agreed, lowest_active(), {.label = "order of gradients"}).wait();
  const auto* values = agreed.const_data_ptr<std::int64_t>();
  arrival_order_.assign(values, values + agreed.numel());
  auto plan = plan_buckets(layouts_, options_.caps, arrival_order_);
  const auto before = launch_delay(buckets_->plan(), layouts_, arrival_order_);
  const auto after = launch_delay(plan, layouts_, arrival_order_);
  if (before - after < kWorthwhile) return;
  log::detail(log::Subsystem::bucket,
              "buckets rebuilt in the order of arrival: mean launch at {:.3f} instead of {:.3f}", after, before);
  next_plan_ = std::move(plan);
  order_ = arrival_order_;
}

std::optional<ReducerMemory> Reducer::Impl::memory() {
  const std::lock_guard lock(mutex_);
  if (!order_is_agreed_) return std::nullopt;
  ReducerMemory memory;
  if (is_learned_) memory.uses = expected_;
  for (const auto i : order_) memory.order.push_back(parameters_[i].name);
  if (knows_samples_) memory.samples = weight_.expected();
  return memory;
}

bool Reducer::Impl::restore(const ReducerMemory& memory) {
  const std::lock_guard lock(mutex_);
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (buckets_->has_slot(i)) places.emplace(parameters_[i].name, i);
  std::vector<std::size_t> order;
  for (const auto& name : memory.order) {
    const auto place = places.extract(name);
    if (place.empty()) return false;
    order.push_back(place.mapped());
  }
  if (state_ != State::idle || (!order.empty() && !places.empty())) return false;
  if (!order.empty()) next_plan_ = plan_buckets(layouts_, options_.caps, order);
  order_is_agreed_ = true;
  order_ = std::move(order);
  is_learned_ = options_.static_graph && memory.uses.size() == expected_.size();
  if (is_learned_) expected_ = memory.uses;
  knows_samples_ = memory.samples.has_value();
  if (memory.samples) weight_.expect(*memory.samples);
  return true;
}

}  // namespace ddp
