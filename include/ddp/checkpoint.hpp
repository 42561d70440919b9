#pragma once
/// checkpoint.hpp: a run's state in one file, so that it can go on in other processes, to the bit.
///
/// In the file: the module's parameters and buffers without a wrapper's prefix, laid out as torch::save() does, so
/// that torch::load(net, path) reads them into the plain module too; beside them the optimizers with all their
/// state, the samplers and the progress. What a module writes beyond those in a save() of its own is not kept.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <type_traits>
#include <utility>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddp {

class DistributedSampler;
class ProcessGroup;

/// How far a run has come; all zero at its start.
struct Progress {
  std::int64_t epoch = 0;  ///< the epoch to go on with
  std::int64_t step = 0;   ///< steps done, as the caller counts them
};

/// What a Checkpoint keeps beside the module.
template <class T>
concept CheckpointPart = std::is_base_of_v<torch::optim::Optimizer, T> || std::is_base_of_v<DistributedSampler, T>;

///     ddp::Checkpoint checkpoint("run.pt", model, optimizer, sampler);
///
/// Rank 0 alone touches the file: other hosts need not see it. Whatever goes wrong there is the same CheckpointError
/// on every rank, and nothing has changed then: neither the file, nor the module, nor the parts.
/// Threads: one. Lifetime: keeps the module and the group; the parts must outlive it.
class Checkpoint {
 public:
  /// `model`: a DistributedDataParallel, whose group it is then, or the plain module of a run of one process, as a
  /// holder or shared_ptr. `parts`: optimizers and samplers, on every rank the same ones in the same order.
  template <class Model, CheckpointPart... Parts>
  Checkpoint(std::filesystem::path path, const Model& model, Parts&... parts)
      : Checkpoint(std::move(path), module_of(model), group_of(model)) {
    (add(parts), ...);
  }
  /// A plain module that the ranks of `group` hold (null: a run of one process); add() takes the parts.
  Checkpoint(std::filesystem::path path, std::shared_ptr<torch::nn::Module> module,
             std::shared_ptr<ProcessGroup> group);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Errors: std::logic_error for an optimizer whose save() writes nothing, as torch::optim::Optimizer's own.
  void add(torch::optim::Optimizer& optimizer);
  void add(DistributedSampler& sampler);

  /// Collective. If there is a file on rank 0, every rank takes its state from it, in place: parameters, gradients,
  /// buffers and options stay the objects that they are. Else a new run starts. Says on rank 0 which.
  /// The run may have another world size than the one that saved, between epochs.
  /// Errors: CheckpointError for a damaged or foreign file, one of another model or optimizer (names the
  /// differences), or a folder in which no checkpoint could be saved later.
  Progress load_or_start();

  /// Collective. Returns once the file is on the disk. A kill at any moment leaves the old file or the new one.
  /// Errors: CheckpointError for a full disk, a missing folder, no permission; the old file is intact.
  void save(const Progress& progress);

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

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
