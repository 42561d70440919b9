#pragma once
/// checkpoint.hpp: a run's state in one file, so that it can go on in other processes, to the bit.
///
/// The file is one of torch.save()'s kind. Python's torch.load(path, weights_only=True) gives a dict of the model's
/// state_dict, the optimizers' and the rest (docs/checkpoints.md lists it), with which a run in Python goes on; a dict
/// with the same keys that Python saved is loaded here. torch::load(net, path) reads the module, without a wrapper's
/// prefix, into the plain one, if its names are of printable ASCII without blanks, quotes and backslashes and no dtype
/// is float8 or uint16, 32 or 64. What a module writes beyond its parameters and buffers in a save() of its own is not
/// kept.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "ddp/checkpoint_value.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace ddp {

class CommHook;
class DistributedSampler;
class ProcessGroup;

/// How far a run has come; all zero at its start.
struct Progress {
  std::int64_t epoch = 0;  ///< the epoch to go on with
  std::int64_t step = 0;   ///< steps done, as the caller counts them
  /// What CheckpointOptions::keep_best compares: rank 0's counts. load_or_start() returns that of the file.
  std::optional<double> metric = std::nullopt;
};

struct CheckpointOptions {
  /// save() returns once the state is copied, on the CPU of rank 0, and the file is written while training goes on.
  /// What goes wrong with it comes out of the next call.
  bool background = false;
  /// How many files are kept: run.pt, the one before as run.1.pt, and so on. At least 1. What a run with a larger
  /// number has left stays.
  int keep_last = 1;
  /// run.best.pt is the one of all with the lowest or highest metric. A save() without one, or with NaN, does not
  /// count.
  enum class Best { none, lowest, highest } keep_best = Best::none;
  /// How long the other ranks wait for rank 0 to write; unset: the group's timeout.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};

/// What a Checkpoint keeps beside the module.
template <class T>
concept CheckpointPart =
    std::is_base_of_v<torch::optim::Optimizer, T> || std::is_base_of_v<torch::optim::LRScheduler, T> ||
    std::is_base_of_v<torch::optim::ReduceLROnPlateauScheduler, T> || std::is_base_of_v<DistributedSampler, T>;

///     ddp::Checkpoint checkpoint("run.pt", model, optimizer, scheduler, sampler);
///
/// Kept beside model and parts: each rank's random numbers (LibTorch's default generators), the state of the model's
/// communication hook, the order in which its gradients are added, epoch and step. Rank 0 alone touches the file: other
/// hosts need not see it. Whatever goes wrong there is the same CheckpointError on every rank, and nothing has changed
/// then: neither the file, nor the module, nor the parts. Threads: one. Lifetime: keeps the module and the group; the
/// parts and values must outlive it. The destructor waits for a file that is being written.
class Checkpoint {
 public:
  /// `model`: a DistributedDataParallel, whose group it is then, or the plain module of a run of one process, as a
  /// holder or shared_ptr (std::logic_error on a rank of several). `parts`: optimizers, schedulers and samplers, on
  /// every rank the same ones in the same order.
  template <class Model, CheckpointPart... Parts>
  Checkpoint(std::filesystem::path path, const Model& model, Parts&... parts)
      : Checkpoint(std::move(path), model, CheckpointOptions(), parts...) {}
  template <class Model, CheckpointPart... Parts>
  Checkpoint(std::filesystem::path path, const Model& model, const CheckpointOptions& options, Parts&... parts)
      : Checkpoint(std::move(path), module_of(model), group_of(model), options) {
    if constexpr (!requires { model->group(); }) require_run_of_one();
    if constexpr (requires { model->reducer_memory(); }) keep_wrapper(model->comm_hook(), model->reducer_memory());
    (add(parts), ...);
  }
  /// A plain module that the ranks of `group` hold (null: a run of one process); add() takes the parts.
  Checkpoint(std::filesystem::path path, std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
             const CheckpointOptions& options = {});
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Before load_or_start() and save(). Errors: std::logic_error after them, for what is kept already, and for an
  /// optimizer whose save() writes nothing, as torch::optim::Optimizer's own.
  void add(torch::optim::Optimizer& optimizer);
  /// The number of its steps, which is all that LibTorch's have; a class of your own may have more to be added.
  void add(torch::optim::LRScheduler& scheduler);
  void add(torch::optim::ReduceLROnPlateauScheduler& scheduler);
  void add(DistributedSampler& sampler);
  /// A value of the program under a name of its own, see checkpoint_value.hpp; every rank gets rank 0's, or its own
  /// back where the value says so.
  void add(const std::string& name, CheckpointValue value);
  template <class T>
    requires(!std::is_const_v<T>)
  void add(const std::string& name, T& value) {
    add(name, CheckpointValue::of(value));
  }

  /// Collective. If there is a file on rank 0, every rank takes its state from it, in place: parameters, gradients,
  /// buffers and options stay the objects that they are. Else a new run starts. Says on rank 0 which.
  /// The run may have another world size than the one that saved; its random numbers are then those of now. At the
  /// end the ranks compare what they have.
  /// Errors: CheckpointError for a damaged or foreign file, one of another model or optimizer (names the
  /// differences), or a folder in which no checkpoint could be saved later.
  Progress load_or_start();

  /// Collective. Returns once the file is on the disk, or with the option background once the state is copied. A kill
  /// at any moment leaves the old file or the new one. Errors: CheckpointError for a full disk, a missing folder, no
  /// permission; the old file is intact.
  void save(const Progress& progress);

  /// Collective. Returns once the file of the last save() is on the disk. Errors: as save().
  void wait();

  const std::filesystem::path& path() const noexcept;

 private:
  template <class Model>
  static std::shared_ptr<torch::nn::Module> module_of(const Model& model) {
    if constexpr (requires { model->group(); })
      return model->module();
    else if constexpr (requires { model.ptr(); })
      return model.ptr();
    else
      return model;
  }
  template <class Model>
  static std::shared_ptr<ProcessGroup> group_of(const Model& model) {
    if constexpr (requires { model->group(); })
      return model->group();
    else
      return nullptr;
  }

  static void require_run_of_one();
  void keep_wrapper(std::shared_ptr<CommHook> hook, CheckpointValue reducer_memory);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
