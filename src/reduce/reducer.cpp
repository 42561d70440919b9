#include "reduce/reducer.hpp"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>

#include <exception>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "comm/planned_calls.hpp"
#include "ddp/log.hpp"
#include "reduce/bucket.hpp"
#include "reduce/grad_hooks.hpp"
#include "reduce/launch_queue.hpp"

namespace ddp {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

BucketPlan plan_for(const std::vector<Parameter>& parameters, const BucketCaps& caps) {
  std::vector<ParameterLayout> layouts;
  for (const auto& parameter : parameters)
    layouts.push_back({parameter.tensor.numel(), parameter.tensor.scalar_type(), parameter.tensor.device()});
  return plan_buckets(layouts, caps);
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

std::string named(const Parameter& parameter) {
  std::ostringstream text;
  text << parameter.name << ' ' << parameter.tensor.sizes();
  return text.str();
}

// "on ranks 0, 2: <fault>", each different fault once.
std::string describe(const std::vector<std::string>& faults) {
  std::map<std::string, std::vector<std::string>> ranks_of;
  for (std::size_t rank = 0; rank < faults.size(); ++rank)
    if (!faults[rank].empty()) ranks_of[faults[rank]].push_back(std::to_string(rank));
  std::vector<std::string> texts;
  for (const auto& [fault, ranks] : ranks_of)
    texts.push_back((ranks.size() == 1 ? "on rank " : "on ranks ") + join(ranks) + ": " + fault);
  return join(texts);
}

constexpr const char* kMissingRemedy =
    "every parameter must take part in the loss; freeze those that do not, with requires_grad_(false), before wrapping";

}  // namespace

class Reducer::Impl {
 public:
  Impl(std::vector<Parameter> parameters, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options);

  void arm();
  void watch(const at::Tensor& output) { hooks_->watch(output); }
  void change_no_sync_depth(int by) { no_sync_depth_ += by; }
  bool synchronises() const { return no_sync_depth_ == 0; }
  const BucketPlan& plan() const { return plan_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  // accumulating: a backward under no_sync; reducing: buckets of this backward fill and leave;
  // broken: communication failed, every later use says so again.
  enum class State { idle, accumulating, reducing, broken };
  struct Place {
    std::size_t bucket;
    std::size_t slot;
  };

  void on_backward();
  void on_gradient(std::size_t index);
  void finish();
  void on_abandoned();

  void settle_abandoned();
  void require_hooks();
  void begin();
  void keep_apart();
  void take(std::size_t index);
  void take_leftovers();
  std::string missing() const;
  void launch_full_buckets();
  void complete_round();
  std::vector<std::string> settle();
  void publish(std::size_t index);

  std::vector<at::Tensor> tensors_;
  BucketPlan plan_;
  std::vector<Parameter> parameters_;
  std::shared_ptr<ProcessGroup> group_;
  bool as_views_;
  at::Tensor scale_;  // 1 / world size; goes in with the copy into the slot, as in PyTorch's DDP
  std::vector<Place> places_;
  std::vector<Bucket> buckets_;
  std::vector<std::string> labels_;
  LaunchQueue queue_;
  std::vector<Work> works_;
  std::vector<bool> unsynchronised_;  // has a gradient of a micro-batch that was not reduced
  State state_ = State::idle;
  int no_sync_depth_ = 0;
  std::string fault_;  // what went wrong on this rank in this round
  std::exception_ptr broken_by_;
  std::int64_t reductions_ = 0;
  bool warned_of_graph_ = false;
  std::mutex mutex_;
  std::unique_ptr<GradHooks> hooks_;
};

Reducer::Impl::Impl(std::vector<Parameter> parameters, std::shared_ptr<ProcessGroup> group,
                    const ReducerOptions& options)
    : tensors_(tensors_of(parameters)),
      plan_(plan_for(parameters, options.caps)),
      parameters_(std::move(parameters)),
      group_(std::move(group)),
      as_views_(options.gradient_as_bucket_view),
      scale_(at::native::wrapped_scalar_tensor(1.0 / group_->size())),
      places_(parameters_.size()),
      queue_(plan_.size()),
      unsynchronised_(parameters_.size(), false) {
  for (const auto& parameter : parameters_)
    if (GradHooks::is_hooked(parameter.tensor))
      throw std::logic_error(
          "ddp: " + parameter.name +
          " belongs to a DistributedDataParallel that still lives; destroy it before wrapping again");
  for (std::size_t b = 0; b < plan_.size(); ++b) {
    std::vector<at::Tensor> members;
    for (std::size_t slot = 0; slot < plan_[b].size(); ++slot) {
      members.push_back(tensors_[plan_[b][slot]]);
      places_[plan_[b][slot]] = {b, slot};
    }
    // The last bucket carries one element a rank: non-zero where that rank's gradients are void.
    const auto extra = b + 1 == plan_.size() ? group_->size() : 0;
    buckets_.emplace_back(members, [&](std::int64_t bytes) { return group_->allocate(bytes); }, extra);
    labels_.push_back("bucket " + std::to_string(b + 1) + " of " + std::to_string(plan_.size()) + " (" +
                      parameters_[plan_[b].front()].name + " to " + parameters_[plan_[b].back()].name + ")");
    log::detail(log::Subsystem::bucket, "{}: {} parameters, {} bytes", labels_.back(), members.size(),
                buckets_.back().bytes());
  }
  hooks_ = std::make_unique<GradHooks>(tensors_, GradEvents{.on_backward = [this] { on_backward(); },
                                                            .on_gradient = [this](std::size_t i) { on_gradient(i); },
                                                            .finish = [this] { finish(); },
                                                            .abandoned = [this] { on_abandoned(); }});
}

void Reducer::Impl::arm() {
  if (GradHooks::inside_backward()) return;  // a forward that is recomputed belongs to the round under way
  const std::lock_guard lock(mutex_);
  require_hooks();
  if (state_ == State::broken) std::rethrow_exception(broken_by_);
  settle_abandoned();
  hooks_->reset();
}

// torch::load() gives a parameter new data, and with it a new accumulator without our hook.
void Reducer::Impl::require_hooks() {
  for (auto unhooked = hooks_->first_unhooked(tensors_); unhooked;
       unhooked = hooks_->first_unhooked(tensors_, *unhooked + 1)) {
    const auto& tensor = tensors_[*unhooked];
    const auto [bucket, slot] = places_[*unhooked];
    const auto& gradient = buckets_[bucket].view(slot);
    if (tensor.dtype() != gradient.dtype() || tensor.device() != gradient.device() ||
        tensor.sizes() != gradient.sizes() || !tensor.requires_grad())
      throw std::logic_error("ddp: " + parameters_[*unhooked].name +
                             " was moved, converted or resized after wrapping; wrap the module after that");
    hooks_->hook_again(*unhooked, tensor);
  }
}

// The backward before this one has thrown. Its round is completed, for the other ranks may wait in it.
void Reducer::Impl::settle_abandoned() {
  if (state_ == State::accumulating) state_ = State::idle;
  if (state_ != State::reducing) return;
  fault_ = "its backward() ended in an exception before its gradients were complete";
  try {
    complete_round();
  } catch (const GradientError& error) {
    log::all.warn("{}; the gradients of that backward are void on every rank", error.what());
  }
}

void Reducer::Impl::on_abandoned() {
  const std::lock_guard lock(mutex_);
  settle_abandoned();
}

void Reducer::Impl::begin() {
  if (state_ != State::idle) return;
  if (no_sync_depth_ > 0) {
    state_ = State::accumulating;
    return;
  }
  state_ = State::reducing;
  keep_apart();
  queue_.reset();
  works_.clear();
  fault_.clear();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].reset();
    if (buckets_[b].is_full() && b + 1 < buckets_.size()) queue_.mark_full(b);  // parameters without elements
  }
  launch_full_buckets();
}

// A gradient that the user has put into another parameter's slot gets memory of its own before the slots
// are written.
void Reducer::Impl::keep_apart() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& current = tensors_[i].grad();
    const auto [bucket, slot] = places_[i];
    if (!current.defined() || same_memory(current, buckets_[bucket].view(slot))) continue;
    for (const auto& other : buckets_)
      if (other.owns(current)) tensors_[i].mutable_grad() = current.clone();
  }
}

void Reducer::Impl::on_backward() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  begin();
}

void Reducer::Impl::on_gradient(std::size_t index) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  begin();
  const auto& gradient = tensors_[index].grad();
  if (state_ == State::broken) return;
  if (state_ == State::accumulating) {
    unsynchronised_[index] = true;
    return;
  }
  const auto [bucket, slot] = places_[index];
  if (!gradient.defined()) return;  // reset by another hook, or by an error of the round before
  if (gradient.layout() != at::kStrided) {
    fault_ = "the gradient of " + named(parameters_[index]) + " is sparse, which is not supported";
  } else if (!buckets_[bucket].holds(slot)) {
    take(index);
  } else if (tensors_[index].numel() > 0) {
    fault_ = "two gradients for " + named(parameters_[index]) +
             " in one backward() (a block that is checkpointed twice); run the block's uses in one checkpoint";
  }
}

// The gradient goes into its slot, and the slot becomes the gradient.
void Reducer::Impl::take(std::size_t index) {
  const auto [bucket, slot] = places_[index];
  auto& gradient = tensors_[index].mutable_grad();
  if (gradient.requires_grad() && !std::exchange(warned_of_graph_, true))
    log::warn(
        "backward() was called with create_graph; a second derivative through averaged gradients is not "
        "supported, the averages are constants");
  const bool filled = buckets_[bucket].put(slot, gradient, scale_);
  if (as_views_) gradient = buckets_[bucket].view(slot);
  // The last bucket waits for finish(): it tells whether all of this backward went well.
  if (filled && bucket + 1 < buckets_.size()) {
    queue_.mark_full(bucket);
    launch_full_buckets();
  }
}

void Reducer::Impl::launch_full_buckets() {
  while (const auto bucket = queue_.pop()) {
    try {
      works_.push_back(comm::PlannedCalls::all_reduce(*group_, buckets_[*bucket].flat(), {.label = labels_[*bucket]}));
    } catch (...) {
      state_ = State::broken;
      broken_by_ = std::current_exception();
      return;
    }
  }
}

void Reducer::Impl::finish() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  if (state_ == State::accumulating) state_ = State::idle;
  if (state_ == State::idle) return;
  if (state_ == State::broken) std::rethrow_exception(broken_by_);
  take_leftovers();
  if (fault_.empty()) fault_ = missing();
  complete_round();
  for (std::size_t i = 0; i < tensors_.size(); ++i) publish(i);
}

// Gradients that only unsynchronised micro-batches have produced.
void Reducer::Impl::take_leftovers() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto [bucket, slot] = places_[i];
    if (unsynchronised_[i] && !buckets_[bucket].holds(slot) && tensors_[i].grad().defined()) take(i);
  }
}

std::string Reducer::Impl::missing() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!buckets_[places_[i].bucket].holds(places_[i].slot)) names.push_back(named(parameters_[i]));
  return names.empty() ? "" : "no gradient for " + join(names) + "; " + kMissingRemedy;
}

// Launches what has not left yet, full or not, so that all ranks do the same, and waits.
void Reducer::Impl::complete_round() {
  const at::NoGradGuard no_grad;
  auto& verdict = buckets_.back().extra();
  verdict.zero_();
  if (!fault_.empty()) verdict[group_->rank()].fill_(1);
  for (std::size_t b = 0; b < buckets_.size(); ++b) queue_.mark_full(b);
  launch_full_buckets();
  if (state_ == State::broken) std::rethrow_exception(broken_by_);
  const auto faults = settle();
  state_ = State::idle;
  unsynchronised_.assign(unsynchronised_.size(), false);
  group_->mark_step(++reductions_);
  if (faults.empty()) return;
  for (auto& tensor : tensors_) tensor.mutable_grad().reset();  // void: a step now would change nothing
  throw GradientError(group_->origin(), "reducer", describe(faults));
}

// Waits for all buckets_; where a rank declared its gradients void, returns every rank's fault.
std::vector<std::string> Reducer::Impl::settle() {
  try {
    for (const auto& work : works_) work.wait();
    if (!buckets_.back().extra().count_nonzero().item<std::int64_t>()) return {};
    return group_->all_gather_bytes(fault_, {.label = "faults of this backward"});
  } catch (...) {
    state_ = State::broken;
    broken_by_ = std::current_exception();
    throw;
  }
}

void Reducer::Impl::publish(std::size_t index) {
  const auto& mean = buckets_[places_[index].bucket].view(places_[index].slot);
  auto& gradient = tensors_[index].mutable_grad();
  if (!as_views_ && gradient.defined() && !gradient.requires_grad()) {
    gradient.copy_(mean);
  } else if (!as_views_) {
    gradient = mean.clone();
  } else if (!gradient.is_same(mean)) {
    gradient = mean;
  }
}

Reducer::Reducer(std::vector<Parameter> parameters, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(group), options)) {}
Reducer::~Reducer() = default;

void Reducer::arm() { impl_->arm(); }
void Reducer::watch(const at::Tensor& output) { impl_->watch(output); }
void Reducer::enter_no_sync() { impl_->change_no_sync_depth(1); }
void Reducer::leave_no_sync() { impl_->change_no_sync_depth(-1); }
bool Reducer::synchronises() const { return impl_->synchronises(); }
const BucketPlan& Reducer::plan() const { return impl_->plan(); }

std::int64_t Reducer::bucket_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& bucket : impl_->buckets()) bytes += bucket.bytes();
  return bytes;
}

}  // namespace ddp
