#pragma once
/// sync_batch_norm.hpp: batch normalisation over the batch of all ranks.

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <ostream>

#include "ddp/process_group.hpp"

namespace ddp {

/// What SyncBatchNorm holds. Names and saved files are those of torch::nn::BatchNorm1d, 2d and 3d.
class SyncBatchNormImpl : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options, const std::shared_ptr<ProcessGroup>& group);

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  std::shared_ptr<ProcessGroup> group_;  // null in a world of one
};

/// Collective, with the backward() that follows: forward in training. Outputs, gradients and running statistics are
/// those of BatchNorm on the batches of all ranks together, which may differ in size, 0 included. In eval mode, and in
/// a world of one, nothing is communicated.
///
///     ddp::SyncBatchNorm norm(torch::nn::BatchNormOptions(64), group);
///
/// Collective: construction of the first for a group, which makes a group of the same ranks for the calls of all.
/// Tensors: [batch, channels, ...], of any floating dtype; half types are computed in float32. Gradients of weight and
/// bias are this rank's part of the sum; DistributedDataParallel averages them like any other.
/// Errors: std::logic_error, on all ranks, for a batch of one value a channel over all ranks; std::logic_error for an
/// input of another shape, and for a backward() through its backward().
TORCH_MODULE(SyncBatchNorm);

/// Collective. Makes each torch::nn::BatchNorm1d, 2d and 3d in `module` do what SyncBatchNorm does, in place: members,
/// names, parameters and optimizers stay as they are, and files are BatchNorm's. Returns how many there were; a
/// warning on rank 0 tells of none. Before the module is wrapped; it may be moved and loaded into before or after.
///
/// A clone() of it is not converted. BatchNorm's own forward refuses a rank's batch of one value a channel, which
/// SyncBatchNorm takes. Errors: std::logic_error for a module that is wrapped already.
std::size_t convert_sync_batchnorm(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& group);

/// The same for a TORCH_MODULE holder.
template <class Holder, class = typename Holder::ContainedType>
std::size_t convert_sync_batchnorm(const Holder& module, const std::shared_ptr<ProcessGroup>& group) {
  return convert_sync_batchnorm(static_cast<torch::nn::Module&>(*module.ptr()), group);
}

}  // namespace ddp
