#pragma once
/// trial.hpp: one training of a smoke test.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "ddp/smoke_test.hpp"
#include "train/smoke_test/plan.hpp"

namespace ddp::smoke {

/// Which layers behave as in training.
enum class Mode { training, frozen_batch_norm, evaluation };

/// A model, its optimizer, and the losses of the steps that were made. Random numbers in a step depend on seed, step
/// and rank alone, so that another process can repeat a rank's.
class Trial {
 public:
  Trial(const SmokeSubject& subject, const std::shared_ptr<ProcessGroup>& group, const SmokeTestOptions& options);

  /// Steps [first, last) of `rank` with the others. Collective.
  void train_as_rank(const Plan& plan, std::size_t first, std::size_t last, ProcessGroup& group);
  /// The same work in one process: the batches of all ranks one after the other, the mean of their gradients.
  void train_in_turn(const Plan& plan, Mode mode);
  /// In one process, the batches of all ranks as one.
  void train_as_a_whole(const Plan& plan, Mode mode);
  /// With equal weights, in evaluation, `samples` have another loss with other random numbers.
  bool draws_random_numbers(const Samples& samples);
  /// A mean loss, and of how many samples.
  struct Portion {
    at::Tensor loss;
    std::int64_t samples;
  };
  /// The losses of `samples`, in portions of `batch`, in evaluation. Random numbers depend on the portion alone.
  std::vector<Portion> evaluate(const Samples& samples, std::size_t batch);

  void save(const std::filesystem::path& path, std::size_t step);
  void load(const std::filesystem::path& path);
  /// Parameters and buffers: copies of them, and from such copies.
  std::vector<at::Tensor> tensors() const;
  /// Of parameters alone.
  std::vector<at::Tensor> weights() const;
  void set_tensors(const std::vector<at::Tensor>& tensors);

  void set_seed(std::uint64_t seed) { seed_ = seed; }
  const std::vector<double>& losses() const { return losses_; }

 private:
  void set_mode(Mode mode);
  at::Tensor loss_of(const Samples& samples, std::size_t step, int rank);

  std::uint64_t seed_;
  SmokeReplica replica_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<double> losses_;
};

/// Any of LibTorch's that normalise over the batch.
bool has_batch_norm(torch::nn::Module& module);
/// One that does so in evaluation, too: without running statistics.
bool has_untracked_batch_norm(torch::nn::Module& module);

}  // namespace ddp::smoke
