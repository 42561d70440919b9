#include "train/smoke_test/trial.hpp"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>

#include "ddp/metrics.hpp"
#include "train/synced_mean.hpp"

namespace ddp::smoke {
namespace {

std::unique_ptr<torch::optim::Optimizer> optimizer_for(const torch::nn::Module& module,
                                                       const SmokeTestOptions& options) {
  if (options.optimizer) return options.optimizer(module.parameters());
  return std::make_unique<torch::optim::SGD>(module.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const auto& tensor : tensors) all.push_back(tensor.detach().clone());
  return all;
}

void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) at::Tensor(to[i]).copy_(from[i]);
}

SmokeReplica seeded_replica(const SmokeSubject& subject, const std::shared_ptr<ProcessGroup>& group,
                            std::uint64_t seed) {
  torch::manual_seed(seed);
  return subject.replica(group);
}

}  // namespace

bool has_batch_norm(torch::nn::Module& module) {
  const auto modules = module.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& part) { return is_batch_norm(*part); });
}

bool has_untracked_batch_norm(torch::nn::Module& module) {
  const auto modules = module.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& part) {
    return is_batch_norm(*part) && part->named_buffers(/*recurse=*/false).is_empty();
  });
}

Trial::Trial(const SmokeSubject& subject, const std::shared_ptr<ProcessGroup>& group, const SmokeTestOptions& options)
    : seed_(options.seed),
      replica_(seeded_replica(subject, group, seed_)),
      optimizer_(optimizer_for(*replica_.module, options)) {}

void Trial::set_mode(Mode mode) {
  replica_.module->train(mode != Mode::evaluation);
  if (mode != Mode::frozen_batch_norm) return;
  for (const auto& part : replica_.module->modules())
    if (is_batch_norm(*part)) part->eval();
}

at::Tensor Trial::loss_of(const Samples& samples, std::size_t step, int rank) {
  constexpr std::uint64_t kMostRanks = 4096;
  torch::manual_seed(seed_ + 1 + step * kMostRanks + static_cast<std::uint64_t>(rank));
  return replica_.loss(samples);
}

void Trial::train_as_rank(const Plan& plan, std::size_t first, std::size_t last, ProcessGroup& group) {
  const auto rank = group.rank();
  set_mode(Mode::training);
  for (std::size_t step = first; step < last; ++step) {
    optimizer_->zero_grad();
    const auto loss = loss_of(plan.steps[step][static_cast<std::size_t>(rank)], step, rank);
    loss.backward();
    optimizer_->step();
    losses_.push_back(mean(loss, group));
  }
}

// Each rank begins a step with rank 0's buffers, and rank 0's are what is left of it.
void Trial::train_in_turn(const Plan& plan, Mode mode) {
  set_mode(mode);
  const auto buffers = replica_.module->buffers();
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    optimizer_->zero_grad();
    const auto before = copies(buffers);
    std::vector<at::Tensor> after;
    double sum = 0;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      copy(before, buffers);
      const auto loss = loss_of(plan.steps[step][static_cast<std::size_t>(rank)], step, rank);
      (loss / plan.ranks).backward();
      sum += loss.item<double>();
      if (rank == 0) after = copies(buffers);
    }
    copy(after, buffers);
    optimizer_->step();
    losses_.push_back(sum / plan.ranks);
  }
}

void Trial::train_as_a_whole(const Plan& plan, Mode mode) {
  set_mode(mode);
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    optimizer_->zero_grad();
    const auto loss = loss_of(plan.whole_batch(step), step, 0);
    loss.backward();
    optimizer_->step();
    losses_.push_back(loss.item<double>());
  }
}

bool Trial::draws_random_numbers(const Samples& samples) {
  const at::NoGradGuard no_grad;
  set_mode(Mode::evaluation);
  return loss_of(samples, 0, 0).item<double>() != loss_of(samples, 1, 0).item<double>();
}

std::vector<Trial::Portion> Trial::evaluate(const Samples& samples, std::size_t batch) {
  const at::NoGradGuard no_grad;
  set_mode(Mode::evaluation);
  std::vector<Portion> portions;
  for (std::size_t first = 0; first < samples.size(); first += batch) {
    const auto last = std::min(samples.size(), first + batch);
    const Samples portion(samples.begin() + static_cast<std::ptrdiff_t>(first),
                          samples.begin() + static_cast<std::ptrdiff_t>(last));
    torch::manual_seed(seed_ + portion.front());
    portions.push_back({replica_.loss(portion), static_cast<std::int64_t>(portion.size())});
  }
  return portions;
}

void Trial::save(const std::filesystem::path& path, std::size_t step) {
  replica_.checkpoint(path, *optimizer_)->save({.step = static_cast<std::int64_t>(step)});
}

void Trial::load(const std::filesystem::path& path) { replica_.checkpoint(path, *optimizer_)->load_or_start(); }

std::vector<at::Tensor> Trial::weights() const { return copies(replica_.module->parameters()); }

std::vector<at::Tensor> Trial::tensors() const {
  auto all = weights();
  for (auto& buffer : copies(replica_.module->buffers())) all.push_back(std::move(buffer));
  return all;
}

void Trial::set_tensors(const std::vector<at::Tensor>& tensors) {
  auto own = replica_.module->parameters();
  for (const auto& buffer : replica_.module->buffers()) own.push_back(buffer);
  copy(tensors, own);
}

}  // namespace ddp::smoke
