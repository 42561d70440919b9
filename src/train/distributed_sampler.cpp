#include "ddp/distributed_sampler.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "ddp/error.hpp"
#include "ddp/log.hpp"
#include "ddp/process_group.hpp"

namespace ddp {

struct DistributedSampler::Shared {
  std::size_t dataset_size = 0;
  int num_replicas = 1;
  int rank = 0;
  int local_replicas = 1;
  bool shuffle = true;
  bool drop_last = false;
  bool pad = true;
  Origin origin;

  std::uint64_t seed = 0;
  std::size_t epoch = 0;
  std::size_t offset = 0;  ///< in the epoch's order, where this pass's share begins
  std::size_t position = 0;
  bool resumes = false;     ///< the next pass begins at `position`
  bool is_counted = false;  ///< the pass under way is the one that epoch and position tell of
  bool is_begun = false;    ///< a pass of `epoch` has
  bool is_passed = false;   ///< and it has come to its end
  bool has_told = false;    ///< that the epoch advances by itself
  bool has_warned = false;

  std::size_t size_of(int of_rank) const {
    const auto replicas = static_cast<std::size_t>(num_replicas), left = dataset_size - offset;
    if (drop_last) return left / replicas;
    const auto padding = pad ? replicas - 1 : replicas - 1 - static_cast<std::size_t>(of_rank);
    return left == 0 ? 0 : (left + padding) / replicas;
  }
};

namespace {

DistributedSamplerOptions completed(DistributedSamplerOptions options, int rank, int size) {
  options.num_replicas = options.num_replicas.value_or(size);
  options.rank = options.rank.value_or(rank);
  return options;
}

/// What the ranks of a group must have in common, in words that an error can show.
std::string agreed_settings(std::size_t dataset_size, const DistributedSamplerOptions& options) {
  const auto yes_or_no = [](bool value) { return value ? "true" : "false"; };
  return "dataset size " + std::to_string(dataset_size) + ", num_replicas " + std::to_string(*options.num_replicas) +
         ", shuffle " + yes_or_no(options.shuffle) + ", seed " + std::to_string(options.seed) + ", drop_last " +
         yes_or_no(options.drop_last) + ", pad " + yes_or_no(options.pad);
}

/// Collective.
void check_agreement(ProcessGroup& group, const std::string& settings) {
  const auto all = group.all_gather_bytes(settings, {.label = "sampler settings"});
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  throw ConfigError(
      group.origin(), "sampler",
      "rank 0 has (" + all[0] + ") but rank " + std::to_string(other - all.begin()) + " has (" + *other + ")",
      "give every rank the same, above all the same seed");
}

/// The epoch's order of the whole dataset, as Python's torch.Generator and torch.randperm make it: int64 [size].
at::Tensor order_of(std::size_t size, bool shuffle, std::uint64_t seed) {
  const auto n = static_cast<std::int64_t>(size);
  const auto integers = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
  if (!shuffle) return at::arange(n, integers);
  return at::randperm(n, at::detail::createCPUGenerator(seed), integers);
}

void write_number(torch::serialize::OutputArchive& archive, const std::string& key, std::uint64_t value) {
  archive.write(key, c10::IValue(static_cast<std::int64_t>(value)));
}

std::uint64_t read_number(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return static_cast<std::uint64_t>(value.toInt());
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t dataset_size, const DistributedSamplerOptions& options)
    : shared_(std::make_shared<Shared>()) {
  const auto complete = completed(options, 0, 1);
  if (*complete.num_replicas < 1 || *complete.rank < 0 || *complete.rank >= *complete.num_replicas) {
    throw std::invalid_argument("sampler: rank " + std::to_string(*complete.rank) + " of " +
                                std::to_string(*complete.num_replicas) +
                                " replicas; ranks count from 0 to num_replicas - 1");
  }
  if (complete.drop_last && !complete.pad)
    throw std::invalid_argument("sampler: drop_last leaves samples out, which without pad none is");
  shared_->dataset_size = dataset_size;
  shared_->num_replicas = *complete.num_replicas;
  shared_->rank = *complete.rank;
  shared_->shuffle = complete.shuffle;
  shared_->drop_last = complete.drop_last;
  shared_->pad = complete.pad;
  shared_->seed = complete.seed;
  shared_->origin = {.rank = *complete.rank, .world_size = *complete.num_replicas};
}

DistributedSampler::DistributedSampler(std::size_t dataset_size, ProcessGroup& group,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(dataset_size, completed(options, group.rank(), group.size())) {
  check_agreement(group, agreed_settings(dataset_size, completed(options, group.rank(), group.size())));
  shared_->origin = group.origin();
  shared_->local_replicas = std::clamp(group.environment().local_world_size, 1, group.size());
}

void DistributedSampler::set_epoch(std::size_t epoch) {
  auto& shared = *shared_;
  if (epoch != shared.epoch) {
    shared.position = shared.offset = 0;
    shared.resumes = shared.is_counted = false;
  } else if (shared.is_begun && !shared.resumes && shared.shuffle && !std::exchange(shared.has_warned, true)) {
    log::warn("sampler: set_epoch({}) again: the next pass has the order of the last one", epoch);
  }
  shared.epoch = epoch;
  shared.is_begun = shared.is_passed = false;
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size && *new_size != shared_->dataset_size) {
    shared_->dataset_size = *new_size;
    shared_->offset = 0;
    shared_->resumes = false;
  }
  pass_ = begin_pass();
  cursor_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  const auto count = std::min(batch_size, pass_.size() - cursor_);
  if (count == 0) {
    end_pass();
    return std::nullopt;
  }
  const auto first = pass_.begin() + static_cast<std::ptrdiff_t>(cursor_);
  cursor_ += count;
  mark_received(count);
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

std::vector<std::size_t> DistributedSampler::begin_pass() {
  auto& shared = *shared_;
  if (!shared.resumes) {
    shared.position = shared.offset = 0;
    if (shared.is_begun) {
      ++shared.epoch;
      if (shared.shuffle && !std::exchange(shared.has_told, true))
        log::info("sampler: the epoch advances by itself, now to {}; set_epoch() would choose it", shared.epoch);
    }
  }
  shared.resumes = shared.is_passed = false;
  shared.is_begun = shared.is_counted = true;
  auto pass = indices();
  pass.erase(pass.begin(), pass.begin() + static_cast<std::ptrdiff_t>(shared.position));
  return pass;
}

void DistributedSampler::mark_received(std::size_t samples) {
  if (shared_->is_counted) shared_->position += samples;
}

void DistributedSampler::end_pass() {
  if (!shared_->is_counted) return;
  shared_->position = 0;
  shared_->is_passed = shared_->is_begun;
}

std::vector<std::size_t> DistributedSampler::indices() const { return indices_of(shared_->rank); }

std::vector<std::size_t> DistributedSampler::indices_of(int rank) const {
  if (rank < 0 || rank >= shared_->num_replicas) {
    throw std::out_of_range("sampler: no rank " + std::to_string(rank) + " among " +
                            std::to_string(shared_->num_replicas));
  }
  const auto order = order_of(shared_->dataset_size, shared_->shuffle, shared_->seed + shared_->epoch);
  const auto* element = order.const_data_ptr<std::int64_t>();
  std::vector<std::size_t> indices(shared_->size_of(rank));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto place =
        shared_->offset + i * static_cast<std::size_t>(shared_->num_replicas) + static_cast<std::size_t>(rank);
    indices[i] = static_cast<std::size_t>(element[place % shared_->dataset_size]);
  }
  return indices;
}

DistributedSamplerState DistributedSampler::state() const {
  const auto& shared = *shared_;
  return {.seed = shared.seed,
          .epoch = shared.is_passed ? shared.epoch + 1 : shared.epoch,
          .position = shared.position,
          .dataset_size = shared.dataset_size,
          .num_replicas = shared.num_replicas,
          .offset = shared.is_passed ? 0 : shared.offset};
}

void DistributedSampler::restore(const DistributedSamplerState& state) {
  auto restored = *shared_;
  const bool is_inside = state.position != 0 || state.offset != 0;
  restored.seed = state.seed;
  restored.epoch = state.epoch;
  restored.offset = std::min(state.offset, restored.dataset_size);
  restored.position = state.position;
  restored.resumes = is_inside;
  restored.is_begun = restored.is_passed = restored.is_counted = false;
  if (state.num_replicas != restored.num_replicas && state.num_replicas > 0) {
    const auto received = state.offset + state.position * static_cast<std::size_t>(state.num_replicas);
    restored.offset = std::min(received, restored.dataset_size);
    restored.position = 0;
  }
  if (is_inside && (state.dataset_size != restored.dataset_size || restored.position > restored.size_of(0))) {
    throw CheckpointError(shared_->origin, "sampler",
                          "the saved position is sample " + std::to_string(state.position) + " of a rank among " +
                              std::to_string(state.num_replicas) + " with a dataset of " +
                              std::to_string(state.dataset_size) + ", but here are " +
                              std::to_string(restored.num_replicas) + " ranks and a dataset of " +
                              std::to_string(restored.dataset_size),
                          "resume with the same data, or from a checkpoint between epochs");
  }
  // Of the ranks that have one sample less than the first, the last round is over.
  restored.position = std::min(restored.position, restored.size_of(restored.rank));
  *shared_ = restored;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto now = state();
  write_number(archive, "seed", now.seed);
  write_number(archive, "epoch", now.epoch);
  write_number(archive, "position", now.position);
  write_number(archive, "dataset_size", now.dataset_size);
  write_number(archive, "num_replicas", static_cast<std::uint64_t>(now.num_replicas));
  write_number(archive, "offset", now.offset);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  restore({.seed = read_number(archive, "seed"),
           .epoch = read_number(archive, "epoch"),
           .position = read_number(archive, "position"),
           .dataset_size = read_number(archive, "dataset_size"),
           .num_replicas = static_cast<int>(read_number(archive, "num_replicas")),
           .offset = read_number(archive, "offset")});
}

std::size_t DistributedSampler::size() const noexcept { return shared_->size_of(shared_->rank); }
std::size_t DistributedSampler::size_of(int rank) const noexcept { return shared_->size_of(rank); }
std::size_t DistributedSampler::position() const noexcept { return shared_->position; }
std::size_t DistributedSampler::dataset_size() const noexcept { return shared_->dataset_size; }
std::size_t DistributedSampler::epoch() const noexcept { return shared_->epoch; }
std::uint64_t DistributedSampler::seed() const noexcept { return shared_->seed; }
int DistributedSampler::rank() const noexcept { return shared_->rank; }
int DistributedSampler::num_replicas() const noexcept { return shared_->num_replicas; }
bool DistributedSampler::drop_last() const noexcept { return shared_->drop_last; }
int DistributedSampler::local_replicas() const noexcept { return shared_->local_replicas; }
bool DistributedSampler::pads() const noexcept { return shared_->pad; }

}  // namespace ddp
