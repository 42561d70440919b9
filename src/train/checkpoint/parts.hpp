#pragma once
/// parts.hpp: what a checkpoint keeps, and how each goes into the file and comes back.
///
/// Reading takes two steps, so that a checkpoint that does not fit changes nothing: stage() reads and checks, and
/// what it returns puts the values in place. Texts of errors name no file; the caller adds it.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoint/pt_file.hpp"
#include "train/checkpoint/value.hpp"

namespace torch::optim {
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace ddp {
struct CheckpointValue;
class DistributedSampler;
}  // namespace ddp

namespace ddp::checkpoint {

/// What Python's DistributedDataParallel puts before all names.
constexpr std::string_view kWrapperPrefix = "module.";
bool are_wrapped(const std::vector<std::string>& names);

/// Puts what was staged in place; does not fail.
using Commit = std::function<void()>;

/// What becomes of tensors that are written: as they are, where they can, or copies that stay as they are now.
enum class Tensors { shared, copied };

/// Whether elements lie upon each other, so that nothing can be loaded into it.
bool is_expanded(const at::Tensor& tensor);
/// On the CPU, dense and with a storage of its own.
at::Tensor to_write(const at::Tensor& tensor, Tensors tensors);
/// The same for all tensors in a tree. Errors: std::runtime_error for one that is too deep.
Value to_write(const Value& value, Tensors tensors);

/// A module's parameters and buffers under their full names, as Python's state_dict() has them, and as a tree.
/// Submodules that are not serializable are left out.
struct ModuleState {
  Dict values;
  ModuleTree tree;
};
ModuleState state_of(const torch::nn::Module& module, Tensors tensors);
/// Checks names, dtypes and shapes in both directions; names may have the prefix "module." of Python's wrapper. The
/// commit copies into the live tensors. Errors: std::runtime_error lists the differences.
Commit stage_module(const torch::nn::Module& module, const Place& place);

/// Errors: std::runtime_error with the value's name.
Commit stage_value(const std::string& name, const CheckpointValue& value, const Place& saved);

class Part {
 public:
  virtual ~Part() = default;
  virtual Value state(Tensors tensors) const = 0;
  /// Errors: std::exception.
  virtual Commit stage(const Place& place) = 0;
};

/// Layout: Python's state_dict() of the optimizer of the same name, whatever there is of it in C++; any other optimizer
/// keeps what its save() writes. `module` gives the parameters their names. Errors: std::logic_error for an optimizer
/// whose save() writes nothing.
std::unique_ptr<Part> make_part(torch::optim::Optimizer& optimizer, std::shared_ptr<torch::nn::Module> module);
/// Layout: what Python's schedulers of that name go on with. The learning rates are the optimizer's, but for a
/// RateScheduler, which sets them at its commit: that of the optimizer comes before.
std::unique_ptr<Part> make_part(torch::optim::LRScheduler& scheduler);
std::unique_ptr<Part> make_part(torch::optim::ReduceLROnPlateauScheduler& scheduler);
std::unique_ptr<Part> make_part(DistributedSampler& sampler);

}  // namespace ddp::checkpoint
