#pragma once
/// state_dict.hpp: .pt files that Python's torch.save() and torch.load() share with this library, and the state_dicts
/// in them. For a run that is to go on exactly, see checkpoint.hpp.
///
///     ddp::load_state_dict(*net, ddp::load_pt("net.pt"));    // torch.save(model.state_dict(), "net.pt")
///
/// IValue: None, bool, int, double, complex, string, tensor, or a list, tuple or dict of such.
/// Errors: CheckpointError, everywhere here; a hostile file is no more than that.

#include <ATen/core/ivalue.h>

#include <filesystem>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddp {

/// What Python's torch.load(path, weights_only=True) gives: nothing in a file is run. An OrderedDict is a dict, a set a
/// list, a torch.Size a tuple; a dtype or device is its name. Tensors lie on the CPU, in memory that they share with
/// all that was loaded: clone() one that is to outlive the rest. Not loaded: sparse, quantized, nested and meta
/// tensors, dtypes that C++ has no name for, bare storages, integers beyond 64 bits, and dicts whose keys are neither
/// str nor numbers.
c10::IValue load_pt(const std::filesystem::path& path);

/// Replaces the file as a whole. Tensors are written from the CPU, without what else lies in their storages.
void save_pt(const std::filesystem::path& path, const c10::IValue& value);

/// A dict of the parameters and buffers under their names, as Python's module.state_dict(). Tensors: the module's own.
c10::IValue state_dict(const torch::nn::Module& module);
/// Copies into the module's tensors. Names, dtypes and shapes must be the module's; else nothing is changed.
void load_state_dict(torch::nn::Module& module, const c10::IValue& state);

/// As Python's optimizer.state_dict(), for SGD, Adam, AdamW (ddp::optim's too), RMSprop, Adagrad and LBFGS; others in a
/// layout of their own. The state of the other language's optimizer fits.
c10::IValue state_dict(torch::optim::Optimizer& optimizer);
/// The optimizer has as many groups and parameters as the one that was saved; else nothing is changed.
void load_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& state);

}  // namespace ddp
