#pragma once
/// reducer_impl.hpp: the reducer's state, for its sources: reducer.cpp (a backward's gradients on their way into the
/// buckets), reducer_round.cpp (the end of a round: the buckets' means on their way back), reducer_early.cpp (means
/// that go back before the last ones are there) and reducer_order.cpp (what the first rounds show and later ones go
/// by).

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/call_plan.hpp"
#include "comm/planned_calls.hpp"
#include "ddp/phase.hpp"
#include "reduce/bucket_flight.hpp"
#include "reduce/bucket_set.hpp"
#include "reduce/grad_hooks.hpp"
#include "reduce/late_gradients.hpp"
#include "reduce/launch_queue.hpp"
#include "reduce/mean_weight.hpp"
#include "reduce/mean_witness.hpp"
#include "reduce/reducer.hpp"
#include "reduce/sparse_gradients.hpp"
#include "reduce/usage_report.hpp"

namespace ddp {

class Reducer::Impl {
 public:
  Impl(std::vector<Parameter> parameters, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options,
       std::shared_ptr<ControlRecord> record);

  void arm();
  void watch(const at::Tensor& output) { hooks_->watch(output); }
  void change_no_sync_depth(int by) { no_sync_depth_ += by; }
  bool synchronises() const { return no_sync_depth_ == 0; }
  std::int64_t micro_batches(bool anew);
  void hand_means_to(std::weak_ptr<MeanTaker> taker);
  void set_samples(std::uint64_t samples);
  void set_loss_scale(float scale);
  bool shadow(bool counts);
  std::int64_t rounds() const { return rounds_; }
  int lowest_active() const;
  std::optional<ReducerMemory> memory();
  bool restore(const ReducerMemory& memory);
  const BucketSet& buckets() const { return *buckets_; }
  const comm::CallPlan& calls() const { return calls_; }
  const ReducerStats& stats() { return flight_.last(); }

 private:
  // accumulating: a backward under no_sync; reducing: buckets of this backward fill and leave;
  // broken: communication failed, every later use says so again.
  enum class State { idle, accumulating, reducing, broken };

  // Bits of the control record's status.
  static constexpr std::uint64_t kFaulty = 1;
  static constexpr std::uint64_t kHasLate = 2;
  static constexpr std::uint64_t kLacks = 4;

  // reducer.cpp
  void on_backward();
  void on_gradient(std::size_t index);
  void finish();
  void on_abandoned();
  void settle_abandoned();
  void require_hooks();
  void begin(std::optional<std::size_t> arrived = std::nullopt);
  void start_round(std::uint64_t weight);
  void keep_apart();
  std::optional<std::vector<bool>> predict_used();
  void do_without(std::size_t index);
  void take(std::size_t index);
  void write(std::size_t index, const at::Tensor& gradient);
  void take_leftovers();
  void launch_full_buckets();
  std::string missing() const;
  bool has_left(int rank) const { return record_->value(left_, rank) != 0; }
  bool all_have_left() const { return record_->sum(left_) == static_cast<std::uint64_t>(group_->size()); }
  // Of the buckets: their mean where the backend forms it on the way; a hook sums.
  ReduceOp op() const {
    return !options_.comm_hook && comm::PlannedCalls::has_means(*group_) ? ReduceOp::avg : ReduceOp::sum;
  }
  bool tolerates_unused() const { return options_.find_unused_parameters || options_.static_graph; }

  // reducer_round.cpp
  void use_plan(BucketPlan plan);
  void break_down();
  template <class F>
  void communicate(F call);
  at::Tensor& carrier();
  void complete_round();
  void settle();
  void read_record();
  bool is_same_round() const;
  void require_same_round();
  void agree_to_stop();
  bool lacks_gradients() const;
  bool any_rank_has(std::uint64_t bit) const;
  void raise_faults();
  void require_same_scale();
  void compare_micro_batches();
  void look_for_means();
  void correct_means();
  void correct(std::size_t bucket);
  void share_unused();
  void publish();
  void publish(std::size_t index);
  void drop_gradients();

  // reducer_early.cpp
  void ask_takers();
  void lead_with_record(std::size_t bucket);
  void hand_out_means();
  bool may_hand_out() const;
  bool is_handed_out(std::size_t index) const {
    return buckets_->has_slot(index) && buckets_->bucket_of(index) < handed_out_;
  }

  // reducer_order.cpp
  std::string why_not_recorded() const;
  void learn();
  void agree_on_order();

  const ReducerOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> tensors_;
  std::vector<ParameterLayout> layouts_;
  std::shared_ptr<ProcessGroup> group_;
  comm::CallPlan calls_;

  std::shared_ptr<ControlRecord> record_;
  ControlRecord::Field status_, left_, round_, plan_, samples_, micro_, stop_, scale_;
  at::Tensor record_values_;  // float, on the CPU
  at::Tensor own_carrier_;    // the same, undefined where the last bucket carries the record

  std::unique_ptr<BucketSet> buckets_;
  std::unique_ptr<LaunchQueue> queue_;
  std::optional<BucketPlan> next_plan_;  // from the next round on
  bool order_is_agreed_ = false;
  std::vector<std::size_t> order_;          // by which the plan was made; empty: that of registration
  std::vector<std::size_t> arrival_order_;  // until the order is agreed
  BucketFlight flight_;
  LateGradients late_;
  SparseGradients sparse_;
  MeanWeight weight_;
  bool knows_samples_ = false;  // of a step, with weight_by_samples
  double correction_ = 1;       // of this round's means
  UsageReport usage_;
  MeanWitness witness_;
  std::vector<std::weak_ptr<MeanTaker>> takers_;
  std::vector<std::shared_ptr<MeanTaker>> wanting_;  // of them, in this round
  bool record_leads_ = false;                        // it leaves ahead of the last bucket
  std::size_t handed_out_ = 0;                       // buckets whose means are gradients already, from the first on
  std::vector<std::uint32_t> expected_;              // arrivals of each gradient in a backward
  bool is_learned_ = false;                          // expected_ is what the static graph's first step had

  std::vector<bool> written_;         // the gradient's slot has this round's content
  std::vector<at::Tensor> kept_;      // what the gradient was before the round took it, where that is needed
  std::vector<bool> unsynchronised_;  // has a gradient of a micro-batch that was not reduced
  State state_ = State::idle;
  int no_sync_depth_ = 0;
  std::uint64_t micro_batches_ = 0;           // backwards under no_sync since the last reduction
  std::optional<std::uint64_t> own_samples_;  // of the next round
  float own_scale_ = 0;                       // of the next round's loss; 0: nothing was said
  bool is_shadow_ = false;                    // this round is one of a rank that has left its loop
  std::string fault_;                         // what went wrong on this rank in this round
  std::exception_ptr broken_by_;
  std::int64_t rounds_ = 0;
  std::optional<Phase> backward_;  // from a backward's first gradient to its end
  bool warned_of_graph_ = false;
  bool warned_of_late_ = false;
  bool warned_of_sparse_ = false;
  bool warned_of_micro_batches_ = false;
  bool warned_of_means_ = false;
  std::mutex mutex_;
  std::unique_ptr<GradHooks> hooks_;
};

}  // namespace ddp
