#include "reduce/reducer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <stdexcept>
#include <utility>

#include "comm/planned_calls.hpp"
#include "ddp/log.hpp"
#include "reduce/fault_text.hpp"
#include "reduce/reducer_impl.hpp"

namespace ddp {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

std::vector<ParameterLayout> layouts_of(const std::vector<Parameter>& parameters) {
  std::vector<ParameterLayout> layouts;
  for (const auto& [name, tensor, is_sparse] : parameters)
    layouts.push_back({tensor.numel(), tensor.scalar_type(), tensor.device()});
  return layouts;
}

// Gradients come about in the reverse order of registration.
std::vector<std::size_t> registration_order(const std::vector<Parameter>& parameters) {
  std::vector<std::size_t> order;
  for (std::size_t left = parameters.size(); left > 0; --left)
    if (!parameters[left - 1].is_sparse) order.push_back(left - 1);
  return order;
}

std::vector<std::uint32_t> once_each(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint32_t> expected;
  for (const auto& tensor : tensors) expected.push_back(tensor.numel() > 0 ? 1 : 0);
  return expected;
}

void require_unwrapped(const std::vector<Parameter>& parameters) {
  for (const auto& parameter : parameters)
    if (GradHooks::is_hooked(parameter.tensor))
      throw std::logic_error(
          "ddp: " + parameter.name +
          " belongs to a DistributedDataParallel that still lives; destroy it before wrapping again");
}

constexpr const char* kMissingRemedy =
    "every parameter must take part in the loss; freeze those that do not, with requires_grad_(false), before "
    "wrapping, or set find_unused_parameters";

}  // namespace

Reducer::Impl::Impl(std::vector<Parameter> parameters, std::shared_ptr<ProcessGroup> group,
                    const ReducerOptions& options, std::shared_ptr<ControlRecord> record)
    : options_(options),
      parameters_(std::move(parameters)),
      tensors_(tensors_of(parameters_)),
      layouts_(layouts_of(parameters_)),
      group_(std::move(group)),
      calls_(group_),
      record_(std::move(record)),
      status_(record_->add("status", 1)),
      left_(record_->add("left", 1)),
      round_(record_->add("round", 4)),
      plan_(record_->add("plan", 2)),
      samples_(record_->add("samples", 8)),
      micro_(record_->add("micro-batches", 2)),
      stop_(record_->add("stop", 1)),
      scale_(record_->add("scale", 4)),
      flight_(group_, options.comm_hook, op()),
      sparse_(parameters_),
      weight_(group_->size(), op() == ReduceOp::avg ? group_->size() : 1),
      usage_(parameters_.size()),
      expected_(once_each(tensors_)),
      written_(parameters_.size(), false),
      kept_(parameters_.size()),
      unsynchronised_(parameters_.size(), false) {
  require_unwrapped(parameters_);
  if (tolerates_unused()) record_->add_flags(parameters_.size());
  const auto elements = static_cast<std::int64_t>(record_->elements());
  record_values_ = at::zeros({elements}, at::kFloat);
  auto plan = plan_buckets(layouts_, options_.caps, registration_order(parameters_));
  // On a device it would be there only once all of backward is; in memory the hosts meet, and the device goes on.
  if (options_.comm_hook || plan.empty() || !group_->device().is_cpu())
    own_carrier_ = at::zeros({elements}, at::kFloat);
  if (!calls_.is_alone())
    log::info(
        "DistributedDataParallel: another wrapper of this group lives, so buckets of both leave at the end of their "
        "backward, each after a call that compares the ranks; a group for each, by new_group(), saves that");
  order_is_agreed_ = plan.size() < 2;
  use_plan(std::move(plan));
  hooks_ = std::make_unique<GradHooks>(tensors_, GradEvents{.on_backward = [this] { on_backward(); },
                                                            .on_gradient = [this](std::size_t i) { on_gradient(i); },
                                                            .finish = [this] { finish(); },
                                                            .abandoned = [this] { on_abandoned(); }});
}

void Reducer::Impl::set_samples(std::uint64_t samples) {
  const std::lock_guard lock(mutex_);
  own_samples_ = samples;
}

void Reducer::Impl::set_loss_scale(float scale) {
  const std::lock_guard lock(mutex_);
  own_scale_ = scale;
}

void Reducer::Impl::arm() {
  if (GradHooks::inside_backward()) return;  // a forward that is recomputed belongs to the round under way
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  require_hooks();
  if (state_ == State::broken) std::rethrow_exception(broken_by_);
  settle_abandoned();
  hooks_->reset();
  backward_.reset();  // of one that threw
}

// torch::load() gives a parameter new data, and with it a new accumulator without our hook.
void Reducer::Impl::require_hooks() {
  for (auto unhooked = hooks_->first_unhooked(tensors_); unhooked;
       unhooked = hooks_->first_unhooked(tensors_, *unhooked + 1)) {
    const auto& [name, tensor, is_sparse] = parameters_[*unhooked];
    const auto& layout = layouts_[*unhooked];
    const bool has_slot = buckets_->has_slot(*unhooked);
    if (tensor.scalar_type() != layout.dtype || tensor.device() != layout.device || !tensor.requires_grad() ||
        tensor.numel() != layout.elements || (has_slot && tensor.sizes() != buckets_->view(*unhooked).sizes()))
      throw std::logic_error("ddp: " + name +
                             " was moved, converted or resized after wrapping; wrap the module after that");
    hooks_->hook_again(*unhooked, tensor);
  }
}

// The backward before this one has thrown. Its round is completed, for the other ranks may wait in it.
void Reducer::Impl::settle_abandoned() {
  if (state_ == State::accumulating) state_ = State::idle;
  if (state_ != State::reducing) return;
  fault_ = "its backward() ended in an exception before its gradients were complete";
  flight_.mark_backward_done();
  try {
    complete_round();
  } catch (const GradientError& error) {
    log::all.warn("{}; the gradients of that backward are void on every rank", error.what());
  }
}

void Reducer::Impl::on_abandoned() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  settle_abandoned();
}

void Reducer::Impl::on_backward() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  begin();
}

// `arrived`: the parameter whose gradient is the first sign of this backward, so that it is not to be done without.
void Reducer::Impl::begin(std::optional<std::size_t> arrived) {
  if (state_ != State::idle) return;
  if (no_sync_depth_ > 0) {
    state_ = State::accumulating;
    return;
  }
  is_shadow_ = false;
  start_round(options_.weight_by_samples ? own_samples_.value_or(0) : 1);
  if (options_.weight_by_samples && !std::exchange(own_samples_, std::nullopt) && fault_.empty())
    fault_ = "weight_by_samples is on, but set_samples() was not called for this step";
  if (state_ == State::broken) return;
  ask_takers();
  look_for_means();
  keep_apart();
  if (const auto used = predict_used())
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (!(*used)[i] && i != arrived) do_without(i);
  launch_full_buckets();
}

void Reducer::Impl::start_round(std::uint64_t weight) {
  fault_ = why_not_recorded();
  state_ = State::reducing;
  weight_.set_own(weight);
  record_->set(left_, is_shadow_ ? 1 : 0);
  if (next_plan_) use_plan(*std::exchange(next_plan_, std::nullopt));
  late_.clear();
  sparse_.clear();
  record_->lower_flags();
  written_.assign(written_.size(), false);
  arrival_order_.clear();
  wanting_.clear();
  handed_out_ = 0;
  queue_->start(expected_);
  flight_.start(*buckets_);
  try {
    calls_.require_same(0, "backward");
    if (options_.weight_by_samples && !knows_samples_) {
      auto total = at::zeros({1}, at::kLong);
      total.fill_(static_cast<std::int64_t>(weight_.own()));
      comm::PlannedCalls::all_reduce(*group_, total, {.label = "samples of the first step"}).wait();
      weight_.expect(static_cast<std::uint64_t>(total.item<std::int64_t>()));
    }
  } catch (...) {
    break_down();
  }
}

// A gradient that the user has put into another parameter's slot gets memory of its own before the slots
// are written.
void Reducer::Impl::keep_apart() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& current = tensors_[i].grad();
    if (!current.defined() || (buckets_->has_slot(i) && same_memory(current, buckets_->view(i)))) continue;
    if (buckets_->own(current)) tensors_[i].mutable_grad() = current.clone();
  }
}

// Which parameters this backward will reach, as far as that can be known; they may turn out to be others.
std::optional<std::vector<bool>> Reducer::Impl::predict_used() {
  if (is_learned_) {
    std::vector<bool> used;
    for (std::size_t i = 0; i < expected_.size(); ++i) used.push_back(expected_[i] > 0 || tensors_[i].numel() == 0);
    return used;
  }
  if (!options_.find_unused_parameters) return std::nullopt;
  const auto start = std::chrono::steady_clock::now();
  auto used = hooks_->reachable();
  usage_.add_search(std::chrono::steady_clock::now() - start);
  return used;
}

// Parameter `index` has no gradient in this backward: one of a micro-batch travels, an older one keeps its value.
void Reducer::Impl::do_without(std::size_t index) {
  auto& gradient = tensors_[index].mutable_grad();
  if (gradient.defined() && unsynchronised_[index]) return take(index);
  if (gradient.defined()) {
    const bool is_slot = buckets_->own(gradient);
    kept_[index] = is_slot ? gradient.clone() : gradient;
    write(index, kept_[index]);
    gradient.reset();
  } else if (buckets_->has_slot(index)) {
    buckets_->clear(index);
    written_[index] = true;
  }
  if (queue_->forgo(index)) flight_.mark_full(buckets_->bucket_of(index));
}

void Reducer::Impl::on_gradient(std::size_t index) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  if (!backward_) backward_.emplace("backward");
  begin(index);
  if (state_ == State::broken || !tensors_[index].grad().defined()) return;  // reset by another hook
  if (state_ == State::accumulating) {
    unsynchronised_[index] = true;
    return;
  }
  if (is_learned_ && queue_->arrivals(index) >= expected_[index] && tensors_[index].numel() > 0)
    fault_ = "static_graph: a gradient for " + named(parameters_[index]) + ", which the first step used " +
             std::to_string(expected_[index]) + " times; use find_unused_parameters where the graph changes";
  take(index);
}

// The gradient goes into its slot. It is undefined until finish(), so that a second one in the same backward, from a
// block that is recomputed twice, comes alone.
void Reducer::Impl::take(std::size_t index) {
  auto gradient = std::exchange(tensors_[index].mutable_grad(), at::Tensor());
  if (gradient.requires_grad() && !std::exchange(warned_of_graph_, true))
    log::warn(
        "backward() was called with create_graph; a second derivative through averaged gradients is not "
        "supported, the averages are constants");
  if (gradient.layout() != at::kStrided && !sparse_.has(index) && !std::exchange(warned_of_sparse_, true))
    log::warn(
        "the gradient of {} is sparse, which its module does not announce: it is averaged as a dense one; name it in "
        "sparse_parameters to keep it sparse",
        parameters_[index].name);
  if (!order_is_agreed_ && queue_->arrivals(index) == 0) arrival_order_.push_back(index);
  write(index, gradient);
  if (tolerates_unused()) record_->raise(index);
  if (!options_.gradient_as_bucket_view && !gradient.requires_grad()) kept_[index] = std::move(gradient);
  if (!queue_->arrive(index)) return;
  flight_.mark_full(buckets_->bucket_of(index));
  launch_full_buckets();
}

void Reducer::Impl::write(std::size_t index, const at::Tensor& gradient) {
  if (tensors_[index].numel() == 0) return;  // nobody waits for it, so its bucket may have left
  const auto& scale = weight_.scale();
  const bool is_first = !written_[index];
  written_[index] = true;
  if (scale.value == 0) {  // a mean over no samples may be NaN
    if (is_first && buckets_->has_slot(index)) buckets_->clear(index);
  } else if (sparse_.has(index)) {
    sparse_.add(index, gradient, scale);
  } else if (queue_->has_left(index)) {
    late_.add(index, gradient, scale);
  } else if (is_first) {
    buckets_->put(index, gradient, scale);
  } else {
    buckets_->add(index, gradient, scale);
  }
}

void Reducer::Impl::launch_full_buckets() {
  // Buckets of several reducers over one group would leave in the order of their gradients, which ranks may not share.
  const bool may_overlap = options_.overlap && calls_.is_alone();
  if (state_ == State::broken || (!may_overlap && !queue_->is_closed())) return;
  bool has_launched = false;
  while (const auto bucket = queue_->pop()) {
    try {
      lead_with_record(*bucket);
      flight_.launch(*buckets_, *bucket);
      has_launched = true;
    } catch (...) {
      return break_down();
    }
  }
  if (has_launched && options_.in_background && !queue_->is_closed()) comm::PlannedCalls::go_on_alone(*group_);
}

void Reducer::Impl::finish() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  struct End {
    std::optional<Phase>& phase;
    ~End() { phase.reset(); }
  };
  const End end{backward_};
  if (state_ == State::accumulating) {
    state_ = State::idle;
    ++micro_batches_;
  }
  if (state_ == State::idle) return;
  if (state_ == State::broken) std::rethrow_exception(broken_by_);
  take_leftovers();
  if (fault_.empty()) fault_ = missing();
  flight_.mark_backward_done();
  complete_round();
  publish();
}

// Gradients that only unsynchronised micro-batches have produced, and parameters that nobody could know to be unused.
void Reducer::Impl::take_leftovers() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (queue_->arrivals(i) > 0 || written_[i] || tensors_[i].numel() == 0) continue;
    if (unsynchronised_[i] && tensors_[i].grad().defined())
      take(i);
    else if (tolerates_unused() && !is_learned_)
      do_without(i);
  }
}

std::string Reducer::Impl::missing() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (expected_[i] > queue_->arrivals(i) && (!tolerates_unused() || is_learned_))
      names.push_back(named(parameters_[i]));
  if (names.empty()) return {};
  if (is_learned_)
    return "static_graph: no gradient, or too few, for " + joined(names) +
           ", which the first step used; use find_unused_parameters where the graph changes";
  return "no gradient for " + joined(names) + "; " + kMissingRemedy;
}

Reducer::Reducer(std::vector<Parameter> parameters, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options,
                 std::shared_ptr<ControlRecord> record)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(group), options, std::move(record))) {}
Reducer::~Reducer() = default;

void Reducer::arm() { impl_->arm(); }
void Reducer::watch(const at::Tensor& output) { impl_->watch(output); }
void Reducer::enter_no_sync() { impl_->change_no_sync_depth(1); }
void Reducer::leave_no_sync() { impl_->change_no_sync_depth(-1); }
bool Reducer::synchronises() const { return impl_->synchronises(); }
std::int64_t Reducer::micro_batches(bool anew) { return impl_->micro_batches(anew); }
void Reducer::hand_means_to(std::weak_ptr<MeanTaker> taker) { impl_->hand_means_to(std::move(taker)); }
void Reducer::set_loss_scale(float scale) { impl_->set_loss_scale(scale); }
void Reducer::set_samples(std::uint64_t samples) { impl_->set_samples(samples); }
bool Reducer::shadow(bool counts) { return impl_->shadow(counts); }
std::int64_t Reducer::rounds() const { return impl_->rounds(); }
int Reducer::lowest_active() const { return impl_->lowest_active(); }
std::int64_t Reducer::bucket_bytes() const { return impl_->buckets().bytes(); }
const BucketPlan& Reducer::plan() const { return impl_->buckets().plan(); }
const comm::CallPlan& Reducer::calls() const { return impl_->calls(); }
const ReducerStats& Reducer::stats() const { return impl_->stats(); }
std::optional<ReducerMemory> Reducer::memory() const { return impl_->memory(); }
bool Reducer::restore(const ReducerMemory& memory) { return impl_->restore(memory); }

}  // namespace ddp
