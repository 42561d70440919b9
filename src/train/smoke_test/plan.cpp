#include "train/smoke_test/plan.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "ddp/distributed_sampler.hpp"

namespace ddp::smoke {
namespace {

// A fifth of the samples in a step, so that the loss falls in a few epochs; BatchNorm cannot train on one.
std::size_t batch_for(std::size_t samples, std::size_t ranks) {
  return std::max<std::size_t>(2, samples / (5 * ranks));
}

}  // namespace

Samples Plan::whole_batch(std::size_t step) const {
  Samples all;
  for (const auto& of_rank : steps[step]) all.insert(all.end(), of_rank.begin(), of_rank.end());
  return all;
}

Plan make_plan(int ranks, std::size_t samples, int steps, std::uint64_t seed) {
  const auto count = static_cast<std::size_t>(ranks);
  if (samples < 2 * count)
    throw std::invalid_argument("ddp: smoke_test: " + std::to_string(samples) + " samples for " +
                                std::to_string(ranks) + " ranks; two a rank are needed at least");
  if (steps < 2) throw std::invalid_argument("ddp: smoke_test: " + std::to_string(steps) + " steps; take 2 or more");
  Plan plan{.ranks = ranks, .samples = samples, .batch = batch_for(samples, count), .steps = {}};
  const auto steps_an_epoch = samples / count / plan.batch;
  for (std::size_t step = 0; step < static_cast<std::size_t>(steps); ++step) {
    auto& of_step = plan.steps.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      DistributedSampler sampler(samples, {.num_replicas = ranks, .rank = rank, .seed = seed, .drop_last = true});
      sampler.set_epoch(step / steps_an_epoch);
      const auto indices = sampler.indices();
      const auto first = indices.begin() + static_cast<std::ptrdiff_t>(step % steps_an_epoch * plan.batch);
      of_step.emplace_back(first, first + static_cast<std::ptrdiff_t>(plan.batch));
    }
  }
  return plan;
}

}  // namespace ddp::smoke
