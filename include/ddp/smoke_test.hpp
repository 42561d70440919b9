#pragma once
/// smoke_test.hpp: two minutes that show whether a model trains on several ranks as it does in one process.
///
///     int main() {
///       return ddp::run([] {
///         ddp::smoke_test_on_request([] { return Net(); }, [] { return dataset(); }, [](auto& model, auto& batch) {
///           return torch::nn::functional::cross_entropy(model(batch.data), batch.target);
///         });
///         auto group = ddp::init_process_group();  // from here on the training
///         ...
///       });
///     }
///
/// DDP_CHECK=1, which `ddprun --check` sets, has that line check and end the program; else it does nothing.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/prefetch.hpp"
#include "ddp/process_group.hpp"
#include "ddp/sync_batch_norm.hpp"

namespace ddp {

using SmokeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

struct SmokeTestOptions {
  int steps = 20;
  std::size_t samples = 100;  ///< the first ones of the dataset
  int ranks = 4;              ///< that smoke_test_on_request() starts where no launcher has
  std::uint64_t seed = 1;
  /// Unset: gradient descent of rate 0.05, momentum 0.9; for sparse gradients give one without momentum, which no
  /// checkpoint could keep.
  SmokeOptimizer optimizer = {};
  /// How far losses and weights may lie apart, relative to 1 + their size. Unset: the square root of the parameters'
  /// machine epsilon, 3.5e-4 in float. With autocast take 0.1.
  std::optional<double> tolerance = std::nullopt;
  /// The wrapped models go through convert_sync_batchnorm() first, and are compared with the whole batch alone.
  bool sync_batch_norm = false;
  DistributedDataParallelOptions wrapper = {};
};

/// One thing that was looked at.
struct SmokeVerdict {
  bool passed = false;
  std::string text;
};

struct SmokeReport {
  bool passed = false;  ///< all of it; the same on every rank, while the rest is there on rank 0 alone
  std::vector<SmokeVerdict> verdicts = {};
  /// The mean loss of each step: of one process on the whole batch, and of the ranks.
  std::vector<double> one_process = {};
  std::vector<double> ranks = {};
  /// Both curves side by side, and a line for each verdict.
  std::string text() const;
};

/// What is checked, whatever its types; smoke_test() makes it.
struct SmokeReplica {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const std::vector<std::size_t>& samples)> loss;
  std::function<std::unique_ptr<Checkpoint>(const std::filesystem::path& path, torch::optim::Optimizer& optimizer)>
      checkpoint;
};
struct SmokeSubject {
  /// A new one, wrapped for the group, or plain without one.
  std::function<SmokeReplica(const std::shared_ptr<ProcessGroup>& group)> replica;
  std::size_t dataset_size = 0;
};

SmokeReport smoke_test(const SmokeSubject& subject, const std::shared_ptr<ProcessGroup>& group,
                       const SmokeTestOptions& options);
void smoke_test_on_request(const std::function<SmokeSubject(at::Device)>& subject, const SmokeTestOptions& options);

namespace detail {

/// Errors: std::invalid_argument for a module whose batch norms are synchronised already.
void require_plain_batch_norms(torch::nn::Module& module);

/// A copy of the model with what its loss needs. Lifetime: shares the dataset.
template <class Model, class Dataset, class Loss>
SmokeReplica smoke_replica(Model model, std::shared_ptr<torch::nn::Module> module, std::shared_ptr<Dataset> dataset,
                           Loss loss, at::Device device) {
  auto shared = std::make_shared<Model>(std::move(model));
  return {.module = std::move(module),
          .loss =
              [shared, dataset, loss, device](const std::vector<std::size_t>& samples) mutable {
                auto batch = dataset->get_batch(samples);
                if (!device.is_cpu()) {
                  DeviceCopier copier(device);
                  copier.start(batch);
                  copier.finish();
                }
                return loss(*shared, batch);
              },
          .checkpoint =
              [shared](const std::filesystem::path& path, torch::optim::Optimizer& optimizer) {
                return std::make_unique<Checkpoint>(path, *shared, optimizer);
              }};
}

template <class MakeModel, class Dataset, class Loss>
SmokeSubject smoke_subject(MakeModel make_model, std::shared_ptr<Dataset> dataset, Loss loss, at::Device device,
                           const SmokeTestOptions& options) {
  const auto size = dataset->size();
  return {.replica = [=](const std::shared_ptr<ProcessGroup>& group) mutable -> SmokeReplica {
            auto model = make_model();
            std::shared_ptr<torch::nn::Module> module;
            if constexpr (requires { model.ptr(); })
              module = model.ptr();
            else
              module = model;
            require_plain_batch_norms(*module);
            module->to(device);
            if (!group) return smoke_replica(std::move(model), module, dataset, loss, device);
            if (options.sync_batch_norm) convert_sync_batchnorm(*module, group);
            return smoke_replica(DistributedDataParallel(model, group, options.wrapper), module, dataset, loss, device);
          },
          .dataset_size = size ? *size : 0};
}

}  // namespace detail

/// Collective. Trains new models for some steps on the first samples of `dataset`, on all ranks, and on rank 0 alone in
/// the meantime of the others: one process that takes the ranks' batches in turn, which has to come to the same, and
/// one that takes them as a whole, which comes to the same unless layers see the whole batch: if BatchNorm or dropout
/// explain a difference, that is shown by a run without them, and no fault. Then: replicas are equal to the bit, the
/// loss falls, a run that goes on from a checkpoint ends with the same bits, and an evaluation counts each sample once.
///
/// `make_model()` gives a new model: a holder or shared_ptr, with random weights from LibTorch's default generator.
/// Leave the conversion of batch norms to the option: rank 0 also trains one that communicates with nobody. `dataset`
/// is one of LibTorch's whose batches are read by index, with all transforms. `loss(model, batch)` is one number, the
/// mean over the batch; `model` is what make_model() gave, or its wrapper, so take it as `auto&`. What model and loss
/// know of the ranks (WORLD_SIZE, group->size()) they know in the one process as well, so that a factor of it goes
/// unseen. Random numbers are seeded anew in each step. Errors: std::invalid_argument for too few samples (two a rank
/// are needed) or steps; what model and loss throw.
template <class MakeModel, class Dataset, class Loss>
SmokeReport smoke_test(MakeModel make_model, Dataset dataset, Loss loss, const std::shared_ptr<ProcessGroup>& group,
                       const SmokeTestOptions& options = {}) {
  return smoke_test(detail::smoke_subject(std::move(make_model), std::make_shared<Dataset>(std::move(dataset)),
                                          std::move(loss), group->device(), options),
                    group, options);
}

/// Where DDP_CHECK is 1, or "long" for 50 steps: smoke_test() on the ranks of the launcher, or, started alone, on
/// options.ranks that this starts as spawn() does; prints the report and ends the program, with exit code 0 or 1.
/// Else returns at once. Before init_process_group(), in front of all that a training does. A program under DDP_CHECK
/// that comes to wrap a model without it ends with a ConfigError.
///
/// `make_dataset()` gives what smoke_test() takes, and is called for a check alone.
template <class MakeModel, class MakeDataset, class Loss>
void smoke_test_on_request(MakeModel make_model, MakeDataset make_dataset, Loss loss,
                           const SmokeTestOptions& options = {}) {
  smoke_test_on_request(
      [&](at::Device device) {
        auto dataset = make_dataset();
        return detail::smoke_subject(std::move(make_model), std::make_shared<decltype(dataset)>(std::move(dataset)),
                                     std::move(loss), device, options);
      },
      options);
}

}  // namespace ddp
