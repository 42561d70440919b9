#include "ddp/sync_batch_norm.hpp"

#include <torch/nn/functional/batchnorm.h>

#include <stdexcept>
#include <string>

#include "comm/planned_calls.hpp"
#include "ddp/log.hpp"
#include "reduce/grad_hooks.hpp"
#include "train/synced_mean.hpp"
#include "train/synced_norm.hpp"

namespace ddp {
namespace {

/// Collective the first time. Batch norms call in the midst of a backward whose buckets leave at other places on other
/// ranks, so they have a group of their own. Null in a world of one.
std::shared_ptr<ProcessGroup> group_of_norms(const std::shared_ptr<ProcessGroup>& group, const char* who) {
  if (!group) throw std::logic_error("ddp: " + std::string(who) + " needs a process group");
  return comm::PlannedCalls::side_group(*group);
}

void require_unwrapped(const torch::nn::Module& module) {
  for (const auto& entry : module.named_parameters())
    if (entry.value().defined() && GradHooks::is_hooked(entry.value()))
      throw std::logic_error("ddp: convert_sync_batchnorm() comes before DistributedDataParallel, to which " +
                             entry.key() + " belongs already");
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options,
                                     const std::shared_ptr<ProcessGroup>& group)
    : NormImplBase(norm_options), group_(group_of_norms(group, "SyncBatchNorm")) {}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const bool is_tracked = options.track_running_stats();
  double momentum = options.momentum().value_or(0);
  if (is_training() && is_tracked) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1 / num_batches_tracked.item<double>();  // the mean over all batches
  }
  if (is_training() && group_)
    return synced_batch_norm(input,
                             {.weight = weight, .bias = bias, .running_mean = running_mean, .running_var = running_var},
                             {.momentum = momentum, .eps = options.eps()}, group_);
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !is_tracked, momentum, options.eps());
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  throw std::logic_error("ddp: SyncBatchNorm expects [batch, " + std::to_string(options.num_features()) +
                         ", ...], not " + c10::str(input.sizes()));
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "ddp::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum())
    stream << *options.momentum();
  else
    stream << "None";
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ')';
}

std::size_t convert_sync_batchnorm(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  require_unwrapped(module);
  const auto norms = group_of_norms(group, "convert_sync_batchnorm()");
  std::size_t found = 0;
  module.apply([&](torch::nn::Module& part) { found += is_batch_norm(part) ? 1 : 0; });
  if (norms) module.apply([&](torch::nn::Module& part) { synchronise(part, norms); });
  if (found == 0 && group->rank() == 0)
    log::warn("convert_sync_batchnorm: the module has no torch::nn::BatchNorm1d, 2d or 3d, nothing was converted");
  return found;
}

}  // namespace ddp
