#pragma once
/// checkpoint_state.hpp: the parts of a checkpoint and how each goes into an archive and comes back.
///
/// Reading takes two steps, so that a checkpoint that does not fit changes nothing: stage() reads and checks, and
/// what it returns puts the values in place. Texts of errors name no file; the caller adds it.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <functional>
#include <memory>
#include <string>

namespace ddp {
class DistributedSampler;
}

namespace ddp::checkpoint {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// Puts what was staged in place.
using Commit = std::function<void()>;

/// Parameters and buffers under their names, submodules nested: the layout of torch::save().
void write_module(const torch::nn::Module& module, OutputArchive& archive);
/// Checks names, dtypes and shapes in both directions; `reserved` is a key of the archive that is not the module's.
/// The commit copies into the live tensors. Errors: std::runtime_error lists the differences.
Commit stage_module(const torch::nn::Module& module, InputArchive& archive, const std::string& reserved);

class Part {
 public:
  virtual ~Part() = default;
  virtual void write(OutputArchive& archive) const = 0;
  /// Errors: std::exception.
  virtual Commit stage(std::shared_ptr<InputArchive> archive) = 0;
};

/// `module` gives the optimizer's parameters their names.
std::unique_ptr<Part> make_part(torch::optim::Optimizer& optimizer, std::shared_ptr<torch::nn::Module> module);
std::unique_ptr<Part> make_part(DistributedSampler& sampler);

}  // namespace ddp::checkpoint
