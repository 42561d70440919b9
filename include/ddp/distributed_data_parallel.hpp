#pragma once
/// distributed_data_parallel.hpp: a module whose gradients are the mean over all ranks.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddp/data_parallel_core.hpp"
#include "ddp/join.hpp"
#include "ddp/moved_argument.hpp"
#include "ddp/phase.hpp"
#include "ddp/process_group.hpp"
#include "ddp/tensor_visitor.hpp"

namespace ddp {

/// What DistributedDataParallel holds. A torch::nn::Module: train(), eval(), zero_grad() and so on
/// reach the wrapped module. Names and saved files are the wrapped module's, without a prefix.
template <class M>
class DistributedDataParallelImpl : public torch::nn::Module {
  static_assert(std::is_base_of_v<torch::nn::Module, M>,
                "DistributedDataParallel<M> wants the module's own type (NetImpl, not its holder Net), or no type at "
                "all: DistributedDataParallel model(net, group)");

 public:
  DistributedDataParallelImpl(std::shared_ptr<M> module, std::shared_ptr<ProcessGroup> group,
                              const DistributedDataParallelOptions& options)
      : torch::nn::Module("DistributedDataParallel"),
        module_(register_module("module", present(std::move(module)))),
        core_(*module_, std::move(group), options) {}

  /// Any arguments and any result that ddp::TensorVisitor knows.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    const Phase phase("forward");
    core_.before_forward(module_->is_training());
    if (const auto device = core_.input_device())
      return call(detail::MovedArgument<Args>(std::forward<Args>(args), *device).get()...);
    return call(std::forward<Args>(args)...);
  }

  /// Micro-batches without communication: `{ auto guard = model->no_sync(); ... loss.backward(); }`.
  NoSync no_sync() { return core_.no_sync(); }
  /// For ranks whose numbers of batches differ; see join.hpp.
  Join join(const JoinOptions& options = {}) { return Join(core_, options); }
  /// How many samples (or tokens) the gradients of the next reduced backward() are a mean of; 0: they do not count.
  /// With no_sync: of all micro-batches together. Errors: std::logic_error without the option weight_by_samples.
  void set_samples(std::int64_t samples) { core_.set_samples(samples); }
  /// What the next loss is multiplied by, the same on all ranks, else backward() is a GradientError; for GradScaler.
  void set_loss_scale(float scale) { core_.set_loss_scale(scale); }
  /// The parameter is one whose gradients are averaged: not frozen, not among ignored_parameters.
  bool averages(const torch::Tensor& parameter) const { return core_.averages(parameter); }
  /// Collective, between backwards. While it lives, `taker` gets the means in backward(), each bucket's as soon as they
  /// are there; for optim::FusedOptimizer::step_in_backward().
  void hand_means_to(std::weak_ptr<MeanTaker> taker) { core_.hand_means_to(std::move(taker)); }
  /// Backwards under no_sync() since the last one that was reduced; 0 in a world of one. `anew`: they are forgotten
  /// where the gradients are zeroed or gone.
  std::int64_t micro_batches(bool anew = false) { return core_.micro_batches(anew); }
  /// Switches the copying of buffers before each forward. The same on all ranks.
  void set_broadcast_buffers(bool on) { core_.set_broadcast_buffers(on); }

  const std::shared_ptr<M>& module() const { return module_; }
  const std::shared_ptr<ProcessGroup>& group() const { return core_.group(); }
  std::int64_t bucket_bytes() const { return core_.bucket_bytes(); }
  /// For a Checkpoint: see data_parallel_core.hpp.
  CheckpointValue reducer_memory() const { return core_.reducer_memory(); }
  /// Null where there is none.
  const std::shared_ptr<CommHook>& comm_hook() const { return core_.comm_hook(); }
  /// Where the time of the last reduction went; empty in a world of one.
  const ReducerStats& reducer_stats() const { return core_.reducer_stats(); }

  /// The wrapped module's; tied weights stand once, under their first name.
  torch::OrderedDict<std::string, torch::Tensor> named_parameters(bool recurse = true) const {
    torch::OrderedDict<std::string, torch::Tensor> distinct;
    std::unordered_set<const void*> seen;
    for (const auto& entry : module_->named_parameters(recurse))
      if (seen.insert(entry.value().unsafeGetTensorImpl()).second) distinct.insert(entry.key(), entry.value());
    return distinct;
  }
  std::vector<torch::Tensor> parameters(bool recurse = true) const { return named_parameters(recurse).values(); }
  torch::OrderedDict<std::string, torch::Tensor> named_buffers(bool recurse = true) const {
    return module_->named_buffers(recurse);
  }

  bool is_training() const noexcept override { return module_->is_training(); }

  void save(torch::serialize::OutputArchive& archive) const override { module_->save(archive); }
  void load(torch::serialize::InputArchive& archive) override { module_->load(archive); }

  /// Errors: std::logic_error. Move or convert the module before wrapping it: the buckets are made for it.
  void to(torch::Device, torch::Dtype, bool = false) override { refuse_move(); }
  void to(torch::Dtype, bool = false) override { refuse_move(); }
  void to(torch::Device, bool = false) override { refuse_move(); }

 private:
  template <class... Args>
  decltype(auto) call(Args&&... args) {
    using Result = decltype(module_->forward(std::forward<Args>(args)...));
    if constexpr (std::is_void_v<Result>) {
      module_->forward(std::forward<Args>(args)...);
    } else {
      decltype(auto) result = module_->forward(std::forward<Args>(args)...);
      auto watch = [this](const at::Tensor& output) { core_.watch(output); };
      visit_tensors(result, watch);
      if constexpr (std::is_reference_v<Result>)
        return static_cast<Result>(result);
      else
        return result;
    }
  }

  static std::shared_ptr<M> present(std::shared_ptr<M> module) {
    if (!module) throw std::logic_error("ddp: DistributedDataParallel needs a module");
    return module;
  }
  [[noreturn]] static void refuse_move() {
    throw std::logic_error("ddp: a wrapped module cannot be moved or converted; wrap it after to()");
  }

  std::shared_ptr<M> module_;
  DataParallelCore core_;
};

/// Trains `module` data-parallel: every rank holds a replica and sees other data; the gradients that
/// backward() leaves are the mean over the ranks, reduced while backward() still runs.
///
/// Collective: construction, which checks that all ranks hold the same model and copies rank 0's
/// parameters and buffers to all; each training forward of a module with buffers; each backward().
/// Errors: ModelMismatchError on every rank; GradientError out of backward() names the parameters
/// without a gradient; CommError and its kinds; std::logic_error for a module that is wrapped already,
/// lies on several devices or not on the group's.
/// Lifetime: make the optimizer before or after, from either's parameters(). Destroy outside backward().
template <class M>
class DistributedDataParallel : public torch::nn::ModuleHolder<DistributedDataParallelImpl<M>> {
 public:
  using Impl = DistributedDataParallelImpl<M>;

  /// Holds nothing until it is assigned.
  DistributedDataParallel(std::nullptr_t) : torch::nn::ModuleHolder<Impl>(nullptr) {}
  DistributedDataParallel(std::shared_ptr<M> module, std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {})
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(std::move(module), std::move(group), options)) {}
  /// A TORCH_MODULE holder.
  template <class Holder, class = typename Holder::ContainedType>
  DistributedDataParallel(const Holder& module, std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), std::move(group), options) {}

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

template <class Holder, class = typename Holder::ContainedType>
DistributedDataParallel(const Holder&, std::shared_ptr<ProcessGroup>, DistributedDataParallelOptions = {})
    -> DistributedDataParallel<typename Holder::ContainedType>;
template <class M>
DistributedDataParallel(std::shared_ptr<M>, std::shared_ptr<ProcessGroup>, DistributedDataParallelOptions = {})
    -> DistributedDataParallel<M>;

}  // namespace ddp
