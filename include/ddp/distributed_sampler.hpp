#pragma once
/// distributed_sampler.hpp: each rank's share of a dataset, epoch by epoch; the same indices as Python's
/// torch.utils.data.DistributedSampler for the same arguments.

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace ddp {

class ProcessGroup;

struct DistributedSamplerOptions {
  std::optional<int> num_replicas = std::nullopt;  ///< unset: the group's size, 1 without a group
  std::optional<int> rank = std::nullopt;          ///< unset: the group's rank, 0 without a group
  bool shuffle = true;                             ///< another order in each epoch, else dataset order
  /// The order's seed, the same on all ranks, whatever seed_all() was given.
  std::uint64_t seed = 0;
  /// Where the ranks do not divide the dataset: true leaves out the tail of the epoch's order, false
  /// fills up with samples from its front, as often as needed.
  bool drop_last = false;
  /// false: for an evaluation, each sample once and none left out, so that ranks may have one sample less than others.
  /// Not with drop_last.
  bool pad = true;
};

/// Where a sampler stands; what save() writes.
struct DistributedSamplerState {
  std::uint64_t seed = 0;
  std::size_t epoch = 0;
  std::size_t position = 0;  ///< see DistributedSampler::position()
  std::size_t dataset_size = 0;
  int num_replicas = 1;
  std::size_t offset = 0;  ///< elements of the epoch's order that were received before, by a run of other ranks
};

/// Sampler of a rank. Each epoch's order is a permutation of the dataset, seeded with seed + epoch (modulo 2^64), of
/// which rank r of R takes elements r, r + R, r + 2R, ... Every rank has the same number of samples: one or more of
/// them several times where a dataset is smaller than the ranks, and none where it is empty, or smaller than
/// the ranks with drop_last. Without `pad` the first ranks may have one more.
/// The epoch advances by itself with each pass that set_epoch() does not choose one for; a line on rank 0 says so.
///
/// Lifetime: copies share epoch, seed and position, so that set_epoch() reaches the copy inside a loader;
/// each copy iterates by itself.
/// Threads: one thread at a time, copies included.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// For num_replicas ranks that need not exist. Errors: std::invalid_argument unless 0 <= rank < num_replicas.
  explicit DistributedSampler(std::size_t dataset_size, const DistributedSamplerOptions& options = {});

  /// Collective. For the ranks of a group. Errors: ConfigError on every rank if the ranks differ in
  /// dataset_size or in any option but the rank.
  DistributedSampler(std::size_t dataset_size, ProcessGroup& group, const DistributedSamplerOptions& options = {});

  /// Chooses the epoch of the next pass, the same on all ranks. The position in another epoch is forgotten: one that
  /// was restored, or that of a pass under way, which goes on without being counted. Warns on rank 0 where that epoch
  /// has been passed: its order would be the same again.
  void set_epoch(std::size_t epoch);

  /// Begins a pass over this rank's samples: at the position that was restored, else at the start.
  /// `new_size` replaces the size of the dataset.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  /// The next `batch_size` dataset indices or what is left of them; nullopt ends the pass.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Seed, epoch and position under their names in `archive`. After load() the next pass goes on where the
  /// saved one was: with another number of ranks, these share what is left of the epoch. After a whole pass the next
  /// epoch is saved. Errors: CheckpointError for a position inside an epoch of another dataset.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  DistributedSamplerState state() const;
  void restore(const DistributedSamplerState& state);

  /// Dataset indices of this rank's samples, or of any rank's, in this epoch: [size_of(rank)].
  std::vector<std::size_t> indices() const;
  std::vector<std::size_t> indices_of(int rank) const;

  /// Samples of this rank, or of any, in this epoch, or in what other ranks have left of it.
  std::size_t size() const noexcept;
  std::size_t size_of(int rank) const noexcept;
  /// Samples of this rank that were received in the pass under way, or in the one that the next pass goes on with
  /// after load(); else 0 between passes. Counted by the loop
  /// over make_data_loader()'s loader, else by next() (which a foreign loader's workers call ahead of the loop).
  std::size_t position() const noexcept;
  std::size_t dataset_size() const noexcept;
  std::size_t epoch() const noexcept;
  std::uint64_t seed() const noexcept;
  int rank() const noexcept;
  int num_replicas() const noexcept;
  bool drop_last() const noexcept;
  bool pads() const noexcept;
  /// How many ranks of its group are on this host, as far as the launcher has said; 1 without a group.
  int local_replicas() const noexcept;

  /// For loaders: reset() and next() in parts. Begins a pass and returns all its indices; then each batch
  /// that the loop receives is reported, and the end of the pass.
  std::vector<std::size_t> begin_pass();
  void mark_received(std::size_t samples);
  void end_pass();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::vector<std::size_t> pass_;  ///< indices of the pass under way
  std::size_t cursor_ = 0;         ///< of which so many were handed out
};

}  // namespace ddp
