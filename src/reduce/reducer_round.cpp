// The end of a reducer's round: what is left leaves, all ranks learn how it went, means become gradients.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "comm/planned_calls.hpp"
#include "comm/stop_agreement.hpp"
#include "comm/text_of.hpp"
#include "ddp/log.hpp"
#include "reduce/broadcast.hpp"
#include "reduce/fault_text.hpp"
#include "reduce/reducer_impl.hpp"

namespace ddp {
namespace {

std::vector<comm::BucketNames> names_of(const BucketSet& buckets, const std::vector<Parameter>& parameters) {
  std::vector<comm::BucketNames> named;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    auto& bucket = named.emplace_back(comm::BucketNames{buckets.label(b), {}});
    for (const auto i : buckets.plan()[b]) bucket.parameters.push_back(parameters[i].name);
  }
  return named;
}

}  // namespace

void Reducer::Impl::use_plan(BucketPlan plan) {
  buckets_.reset();  // first, for there may be no room for both
  // Where the record only leads, its place remains, so that a backend cuts the bucket as ever and has the same bits.
  const auto extra = own_carrier_.defined() && !record_leads_ ? 0 : record_values_.numel();
  buckets_ = std::make_unique<BucketSet>(
      parameters_, std::move(plan), [this](std::int64_t bytes) { return group_->allocate(bytes); }, extra);
  queue_ = std::make_unique<LaunchQueue>(buckets_->bucket_of_each(), buckets_->size());
  comm::PlannedCalls::name_buckets(*group_, names_of(*buckets_, parameters_));
}

// What fails in communication, or in a hook of the user's, leaves the reducer broken. The other ranks would wait in
// vain, so they are told; but for what all ranks see alike.
void Reducer::Impl::break_down() {
  state_ = State::broken;
  broken_by_ = std::current_exception();
  try {
    throw;
  } catch (const CallMismatchError&) {
  } catch (...) {
    group_->fail(comm::text_of(broken_by_));
  }
}

template <class F>
void Reducer::Impl::communicate(F call) {
  try {
    call();
  } catch (const GradientError&) {
    if (state_ != State::idle) break_down();  // a hook's own, before all ranks knew how the round went
    throw;
  } catch (...) {
    break_down();
    throw;
  }
}

at::Tensor& Reducer::Impl::carrier() {
  return own_carrier_.defined() ? own_carrier_ : (*buckets_)[buckets_->size() - 1].extra();
}

// Launches what has not left yet, full or not, so that all ranks do the same, and waits.
void Reducer::Impl::complete_round() {
  record_->set(status_,
               (fault_.empty() ? 0 : kFaulty) | (late_.is_empty() ? 0 : kHasLate) | (lacks_gradients() ? kLacks : 0));
  record_->set(round_, static_cast<std::uint64_t>(rounds_ + 1) & 0xFFFFFFFF);
  record_->set(plan_, static_cast<std::uint64_t>(calls_.number()) & 0xFFFF);
  record_->set(samples_, weight_.own());
  record_->set(micro_, std::min<std::uint64_t>(micro_batches_, 0xFFFF));
  record_->set(stop_, comm::stop_wish_to_tell());
  record_->set(scale_, std::bit_cast<std::uint32_t>(std::exchange(own_scale_, 0)));
  record_->write(record_values_.mutable_data_ptr<float>());
  carrier().copy_(record_values_);
  queue_->close();
  launch_full_buckets();
  if (state_ == State::broken) std::rethrow_exception(broken_by_);
  communicate([this] {
    if (own_carrier_.defined() && !record_leads_) flight_.launch(own_carrier_, "control record");
    sparse_.launch(*group_);
    settle();
  });
}

void Reducer::Impl::settle() {
  hand_out_means();
  flight_.wait();
  sparse_.wait();
  read_record();
  state_ = State::idle;
  group_->mark_step(++rounds_);
  require_same_round();
  agree_to_stop();
  unsynchronised_.assign(unsynchronised_.size(), false);
  micro_batches_ = 0;
  raise_faults();
  require_same_scale();
  compare_micro_batches();
  correct_means();
  if (all_have_left()) return;
  learn();
  share_unused();
}

void Reducer::Impl::read_record() {
  record_values_.copy_(carrier().is_complex() ? at::real(carrier()) : carrier());
  record_->read(record_values_.const_data_ptr<float>());
}

bool Reducer::Impl::is_same_round() const { return record_->is_same_on_all(round_) && record_->is_same_on_all(plan_); }

// Sizes were equal, so the sums are formed; but of different steps.
void Reducer::Impl::require_same_round() {
  if (is_same_round()) return;
  std::vector<std::string> texts;
  for (int rank = 0; rank < group_->size(); ++rank)
    texts.push_back("rank " + std::to_string(rank) + " in reduction " + std::to_string(record_->value(round_, rank)) +
                    " of wrapper " + std::to_string(record_->value(plan_, rank)));
  drop_gradients();
  throw CallMismatchError(group_->origin(), "reducer",
                          "the ranks average different steps: " + joined(texts) +
                              "; call backward() of the same wrapper, as often, on every rank");
}

void Reducer::Impl::agree_to_stop() {
  if (record_->sum(stop_) == 0) return;
  std::vector<StopReason> told;
  for (int rank = 0; rank < group_->size(); ++rank)
    told.push_back(static_cast<StopReason>(record_->value(stop_, rank)));
  comm::agree_to_stop(*group_, told);
}

// For the report of find_unused_parameters.
bool Reducer::Impl::lacks_gradients() const {
  if (!options_.find_unused_parameters) return false;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].numel() > 0 && queue_->arrivals(i) == 0) return true;
  return false;
}

bool Reducer::Impl::any_rank_has(std::uint64_t bit) const {
  for (int rank = 0; rank < group_->size(); ++rank)
    if ((record_->value(status_, rank) & bit) != 0) return true;
  return false;
}

void Reducer::Impl::raise_faults() {
  if (!any_rank_has(kFaulty)) return;
  const auto faults = group_->all_gather_bytes(fault_, {.label = "faults of this backward"});
  drop_gradients();
  throw GradientError(group_->origin(), "reducer", described(faults));
}

// Of losses that were scaled differently no mean makes sense. Ranks that have left their loops add zeros.
void Reducer::Impl::require_same_scale() {
  if (record_->is_same_on_all(scale_)) return;
  std::vector<std::string> texts;
  bool differ = false;
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (has_left(rank)) continue;
    const auto bits = record_->value(scale_, rank);
    differ |= bits != record_->value(scale_, lowest_active());
    texts.push_back(scaled(std::bit_cast<float>(static_cast<std::uint32_t>(bits))) + " on rank " +
                    std::to_string(rank));
  }
  if (!differ) return;
  drop_gradients();
  throw GradientError(group_->origin(), "reducer",
                      "the ranks scaled their losses differently: " + joined(texts) +
                          "; step() and update() of the GradScaler in the same steps on every rank, also in the step "
                          "that is given to Join::finish(), and load its state on all of them");
}

// A no_sync that lives on some ranks only pairs their later backwards with the others' earlier ones, which no size
// shows. Where samples are counted, ranks may well take other numbers of micro-batches.
void Reducer::Impl::compare_micro_batches() {
  if (warned_of_micro_batches_ || options_.weight_by_samples || record_->is_same_on_all(micro_)) return;
  std::vector<std::string> texts;
  bool differ = false;
  std::optional<std::uint64_t> first;
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (record_->value(left_, rank) != 0) continue;
    const auto micro_batches = record_->value(micro_, rank);
    differ |= micro_batches != first.value_or(micro_batches);
    first = micro_batches;
    texts.push_back(std::to_string(micro_batches) + " of rank " + std::to_string(rank));
  }
  if (!differ) return;
  warned_of_micro_batches_ = true;
  log::warn(
      "reduction {} averages gradients that hold different numbers of backwards under no_sync: {}; right where the "
      "ranks split a step into different numbers of micro-batches; but a no_sync that lives on some ranks only lets "
      "weights differ between the ranks",
      rounds_, joined(texts));
}

// A backward adds to means where micro-batches are added up without no_sync: right, but each of them costs a reduction.
void Reducer::Impl::look_for_means() {
  if (warned_of_means_ || !witness_.is_unchanged(tensors_)) return;
  warned_of_means_ = true;
  log::warn(
      "this backward adds to gradients that the one before has averaged already, so that each of several micro-batches "
      "waits for the other ranks: let all but the last run under no_sync, as ddp::accumulate() does; where they are "
      "no micro-batches of one step, zero_grad() is missing");
}

std::int64_t Reducer::Impl::micro_batches(bool anew) {
  const std::lock_guard lock(mutex_);
  const auto is_zero = [](const at::Tensor& tensor) {
    return !tensor.grad().defined() || !tensor.grad().any().item<bool>();
  };
  if (anew && micro_batches_ > 0 && std::all_of(tensors_.begin(), tensors_.end(), is_zero)) {
    micro_batches_ = 0;
    unsynchronised_.assign(unsynchronised_.size(), false);
  }
  return static_cast<std::int64_t>(micro_batches_);
}

// Void: a step of the optimizer would change nothing.
void Reducer::Impl::drop_gradients() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].mutable_grad().reset();
    kept_[i].reset();
  }
}

void Reducer::Impl::correct_means() {
  if (any_rank_has(kHasLate)) {
    std::vector<std::string> names;
    for (const auto i : late_.exchange(*group_, parameters_, *buckets_, op())) names.push_back(parameters_[i].name);
    if (!options_.static_graph && !std::exchange(warned_of_late_, true))  // there it is the first step's alone
      log::warn(
          "gradients of {} came after their bucket had left and were averaged in a second exchange, as happens with "
          "recomputed blocks; static_graph avoids that where the graph is the same in every step",
          joined(names));
  }
  const auto total = record_->sum(samples_);
  correction_ = weight_.correction(total);
  for (std::size_t b = handed_out_; b < buckets_->size(); ++b) correct(b);
  weight_.expect(total);
  knows_samples_ = options_.weight_by_samples;
}

// What the loop leaves in a gradient that no rank has used, zeros or none, is unknown to a rank that has left it.
void Reducer::Impl::share_unused() {
  if (!tolerates_unused() || record_->sum(left_) == 0) return;
  std::vector<std::size_t> unused;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!record_->raised(i) && tensors_[i].numel() > 0) unused.push_back(i);
  if (unused.empty()) return;
  std::string layouts;
  for (const auto i : unused) layouts += !kept_[i].defined() ? 'n' : kept_[i].layout() == at::kStrided ? 'd' : 's';
  layouts = group_->broadcast_bytes(layouts, lowest_active(), {.label = "kinds of unused gradients"});
  std::vector<at::Tensor> gradients;
  for (std::size_t n = 0; n < unused.size(); ++n) {
    if (layouts[n] == 'n') continue;
    const auto& own = kept_[unused[n]];
    gradients.push_back(!own.defined()                 ? at::zeros_like(tensors_[unused[n]])
                        : own.layout() == at::kStrided ? own.clone()
                                                       : own.to_dense());
  }
  broadcast_in_chunks(gradients, *group_, lowest_active());
  if (!has_left(group_->rank())) return;
  for (std::size_t n = 0, next = 0; n < unused.size(); ++n) {
    if (layouts[n] == 'n') continue;
    const auto& gradient = gradients[next++];
    kept_[unused[n]] = layouts[n] == 's' ? gradient.to_sparse(1) : gradient;
  }
}

void Reducer::Impl::correct(std::size_t bucket) {
  if (correction_ != 1) (*buckets_)[bucket].gradients().mul_(correction_);
}

void Reducer::Impl::publish() {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!is_handed_out(i)) publish(i);
  witness_.remember(tensors_);
  flight_.mark_done(rounds_);
}

void Reducer::Impl::publish(std::size_t index) {
  auto& gradient = tensors_[index].mutable_grad();
  auto kept = std::exchange(kept_[index], at::Tensor());
  if (tolerates_unused() && !record_->raised(index) && tensors_[index].numel() > 0) {
    gradient = std::move(kept);  // nobody used it
    return;
  }
  if (sparse_.has(index)) {
    gradient = sparse_.sum(index, correction_);
    return;
  }
  const auto& mean = buckets_->view(index);
  if (options_.gradient_as_bucket_view) {
    gradient = mean;
  } else if (kept.defined() && kept.layout() == at::kStrided) {
    gradient = kept.copy_(mean);
  } else {
    gradient = mean.clone();
  }
}

bool Reducer::Impl::shadow(bool counts) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  if (state_ == State::broken) std::rethrow_exception(broken_by_);
  settle_abandoned();
  is_shadow_ = true;
  drop_gradients();
  start_round(counts && !options_.weight_by_samples ? 1 : 0);
  if (state_ == State::broken) std::rethrow_exception(broken_by_);
  for (std::size_t i = 0; i < tensors_.size(); ++i) do_without(i);
  launch_full_buckets();
  flight_.mark_backward_done();
  complete_round();
  if (all_have_left()) return false;
  publish();
  return true;
}

int Reducer::Impl::lowest_active() const {
  for (int rank = 0; rank < group_->size(); ++rank)
    if (!has_left(rank)) return rank;
  return 0;
}

}  // namespace ddp
