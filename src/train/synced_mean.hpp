#pragma once
/// synced_mean.hpp: what makes torch::nn::BatchNorm's own forward() a synchronised one.
///
/// A module's typed member and the registry share one object, whose forward() is not virtual, so nothing can be put in
/// its place. But it ends in the operator batch_norm, and which kernel of that runs is chosen by the dispatch keys of
/// all its arguments. So the module's running_mean becomes a tensor with one key more, for which we have a kernel; all
/// other operators pass that key over.

#include <torch/nn/module.h>

#include <memory>

#include "ddp/process_group.hpp"

namespace ddp {

/// A BatchNorm1d, 2d or 3d, synchronised or not.
bool is_batch_norm(torch::nn::Module& module);
/// A BatchNorm that synchronise() was called for, or a SyncBatchNorm.
bool is_synchronised(torch::nn::Module& module);

/// Makes a BatchNorm synchronise over `group`, whose calls are all those of batch norms; silent for another module. Its
/// buffers are the same memory afterwards.
void synchronise(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& group);

}  // namespace ddp
